"""Deleting what retention no longer keeps: manifest first, then payload, and only of this run."""

from collections.abc import Collection

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.records import Manifest
from speedtronic.checkpoint.retention import Retention
from speedtronic.checkpoint.storage import Storage
from speedtronic.checkpoint.verify import Candidate, candidates
from speedtronic.errors import CheckpointError


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
            mine = outline.read(self._storage, name).get("run_id") == run_id
        except CheckpointError:
            mine = False
        if mine:
            self._storage.delete(name)
        else:
            self._of_others.add(stray.step)
