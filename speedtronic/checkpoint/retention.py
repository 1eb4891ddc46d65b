"""Decide which checkpoints to delete, delete them, and pin those that must stay."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.candidates import Candidate, candidates
from speedtronic.checkpoint.records import Manifest
from speedtronic.errors import CheckpointError
from speedtronic.storage.base import Storage, publish_bytes, read_record


@dataclass(frozen=True)
class Retention:
    """Which checkpoints a run keeps: all that any of the three rules names.

    Attributes:
        keep_last: number of the newest to keep, >= 1; None keeps all.
        keep_best: number of those with the lowest validation loss to keep; of equals the later.
        keep_every: milestones: steps that this divides are kept.
    """

    keep_last: int | None = None
    keep_best: int | None = None
    keep_every: int | None = None

    def steps_to_delete(
        self,
        steps: Collection[int],
        *,
        val_losses: Mapping[int, float],
        protected: Collection[int],
    ) -> list[int]:
        """List the steps that are no longer kept, oldest first.

        Args:
            steps: committed steps of this run only.
            val_losses: validation loss by step, for the steps that have one.
            protected: never deleted, and not counted against `keep_last` when lower than those
                kept.
        """
        if self.keep_last is None:
            return []
        kept = {*sorted(steps)[-self.keep_last :], *protected, *self._best(val_losses)}
        if self.keep_every is not None:
            kept.update(step for step in steps if step % self.keep_every == 0)
        return [step for step in sorted(steps) if step not in kept]

    def _best(self, val_losses: Mapping[int, float]) -> list[int]:
        ranked = sorted(val_losses, key=lambda step: (val_losses[step], -step))
        return ranked[: self.keep_best or 0]


def pin(storage: Storage, step: int, reason: str) -> None:
    """Keep the checkpoint of `step` until `unpin`. The reason is for people. Durable on return."""
    record = {"reason": reason, "pinned_at": datetime.now(UTC).isoformat(timespec="seconds")}
    content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    publish_bytes(storage, layout.pin_name(step), content)


def unpin(storage: Storage, step: int) -> None:
    """Let retention decide on `step` again; a step that is not pinned is no error."""
    storage.delete(layout.pin_name(step))
    storage.sync_folder()


def pinned(storage: Storage) -> dict[int, str]:
    """Return the pinned steps and the reason of each."""
    return {step: _reason(storage, step) for step in layout.pinned_steps(storage.entries())}


def _reason(storage: Storage, step: int) -> str:
    """Read why a step is pinned; a damaged pin file still pins, for an unknown reason."""
    try:
        return str(json.loads(read_record(storage, layout.pin_name(step)))["reason"])
    except (CheckpointError, ValueError, LookupError, TypeError, RecursionError):
        return "unknown"


class Pruner:
    """Deletes checkpoints of one store.

    Args:
        storage: where the checkpoints are.
        retention: which to keep.
    """

    def __init__(self, storage: Storage, retention: Retention) -> None:
        self._storage = storage
        self._retention = retention
        self._manifests: dict[int, Manifest] = {}  # of kept checkpoints; each is read once
        self._of_others: set[int] = set()  # payloads without a manifest; each is read once

    def prune(self, run_id: str, protected: Collection[int]) -> None:
        """Delete the checkpoints that are no longer kept.

        A crash at any moment leaves payloads without manifests, which the next call deletes.

        Args:
            run_id: checkpoints of other runs are neither counted nor deleted.
            protected: steps that are kept besides the pinned ones.
        """
        found = [c for c in candidates(self._storage) if not c.irregular]
        if self._retention.keep_last is not None:
            self._delete_beyond(found, run_id, protected)
        for candidate in found:
            if not candidate.committed and candidate.step < max(protected):
                self._delete_stray(candidate, run_id)

    def _delete_beyond(
        self, found: list[Candidate], run_id: str, protected: Collection[int]
    ) -> None:
        mine = self._of_run(found, run_id)
        names = self._storage.entries()  # an entry of any kind pins
        val_losses = {s: m.val_loss for s, m in mine.items() if m.val_loss is not None}
        kept = {*protected, *layout.pinned_steps(names)}
        deleted = self._retention.steps_to_delete(mine, val_losses=val_losses, protected=kept)
        for step in deleted:
            self._storage.delete(layout.manifest_name(step))
            self._storage.sync_folder()
            self._storage.delete(layout.payload_name(step))
        self._manifests = {step: mine[step] for step in mine if step not in deleted}

    def _of_run(self, found: list[Candidate], run_id: str) -> dict[int, Manifest]:
        """Return the manifests of the committed checkpoints of this run, by step."""
        mine = {}
        for candidate in found:
            if not candidate.committed:
                continue
            try:
                manifest = self._manifests.get(candidate.step) or candidate.manifest
            except CheckpointError:
                continue  # a resume judges it, and says why
            if manifest.run_id == run_id:
                mine[candidate.step] = manifest
        return mine

    def _delete_stray(self, stray: Candidate, run_id: str) -> None:
        """Delete a payload without a manifest if it is of this run.

        An interrupted save or deletion left it. It may be large, so only its run id is read.
        """
        if stray.step in self._of_others:
            return
        name = layout.payload_name(stray.step)
        try:
            mine = outline.read_outline(self._storage, name).get("run_id") == run_id
        except CheckpointError:
            mine = False
        if mine:
            self._storage.delete(name)
        else:
            self._of_others.add(stray.step)
