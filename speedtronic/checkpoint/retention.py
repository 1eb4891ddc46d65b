"""Which steps to delete. Pure: a list in, a list out."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.candidates import Candidate, candidates
from speedtronic.checkpoint.records import Manifest
from speedtronic.errors import CheckpointError
from speedtronic.storage.base import Storage, publish, read_record


@dataclass(frozen=True)
class Retention:
    """What a run keeps. All of it adds up.

    Attributes:
        keep_last: how many of the newest, >= 1; None keeps all.
        keep_best: how many of those with the lowest validation loss; of equals the later.
        keep_every: the milestones, those of a step that this divides.
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
        """The steps that are no longer kept, oldest first.

        Args:
            steps: committed steps of this run only.
            val_losses: of those that have one.
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
    """Keep the checkpoint of `step` until `unpin`; the reason is for people. Durable on return."""
    record = {"reason": reason, "pinned_at": datetime.now(UTC).isoformat(timespec="seconds")}
    content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    publish(storage, layout.pin_name(step), lambda file: file.write(content))


def unpin(storage: Storage, step: int) -> None:
    """Let retention decide again; a step that is not pinned is no error."""
    storage.delete(layout.pin_name(step))
    storage.sync_folder()


def pinned(storage: Storage) -> dict[int, str]:
    """The pinned steps with the reason of each."""
    return {step: _reason(storage, step) for step in layout.pinned_steps(storage.entries())}


def _reason(storage: Storage, step: int) -> str:
    """A pin holds whatever its file says."""
    try:
        return str(json.loads(read_record(storage, layout.pin_name(step)))["reason"])
    except (CheckpointError, ValueError, LookupError, TypeError, RecursionError):
        return "unknown"


class Pruner:
    """Deletes checkpoints of one store.

    Args:
        storage: where they are.
        retention: what to keep.
    """

    def __init__(self, storage: Storage, retention: Retention) -> None:
        self._storage = storage
        self._retention = retention
        self._manifests: dict[int, Manifest] = {}  # of those kept, so that each is read once
        self._of_others: set[int] = set()  # strays, each looked into once

    def prune(self, run_id: str, protected: Collection[int]) -> None:
        """Delete what is not kept. A crash at any moment leaves payloads without manifests, which
        the next call deletes.

        Args:
            run_id: whose checkpoints; those of others are neither counted nor deleted.
            protected: steps that are kept whatever retention says; pinned ones always are.
        """
        found = [c for c in candidates(self._storage) if not c.irregular]  # those are not ours
        if self._retention.keep_last is not None:
            self._delete_beyond(found, run_id, protected)
        for candidate in found:
            if not candidate.committed and candidate.step < max(protected):
                self._delete_stray(candidate, run_id)

    def _delete_beyond(
        self, found: list[Candidate], run_id: str, protected: Collection[int]
    ) -> None:
        mine = self._of_run(found, run_id)
        names = self._storage.entries()  # a pin holds whatever it is
        val_losses = {s: m.val_loss for s, m in mine.items() if m.val_loss is not None}
        kept = {*protected, *layout.pinned_steps(names)}
        deleted = self._retention.steps_to_delete(mine, val_losses=val_losses, protected=kept)
        for step in deleted:
            self._storage.delete(layout.manifest_name(step))
            self._storage.sync_folder()
            self._storage.delete(layout.payload_name(step))
        self._manifests = {step: mine[step] for step in mine if step not in deleted}

    def _of_run(self, found: list[Candidate], run_id: str) -> dict[int, Manifest]:
        """The committed steps of this run."""
        mine = {}
        for candidate in found:
            if not candidate.committed:
                continue
            try:
                manifest = self._manifests.get(candidate.step) or candidate.manifest
            except CheckpointError:
                continue  # for select to judge, with its reason
            if manifest.run_id == run_id:
                mine[candidate.step] = manifest
        return mine

    def _delete_stray(self, stray: Candidate, run_id: str) -> None:
        """A save or a deletion cut short leaves a whole payload, which says whose it is. It may be
        large and is of no further use, so only that is read of it."""
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
