"""Save and select the checkpoints of one run so that a crash at any moment loses none of them.

Commit order: payload, manifest, pointer; each is durable before the next is written.
Deletion order: manifest, payload. So a checkpoint with a manifest is complete at every moment, and
after the first commit at least one complete checkpoint always remains.
"""

import uuid
from collections.abc import Callable, Collection
from typing import Any

from speedtronic.checkpoint import codec, layout
from speedtronic.checkpoint.candidates import PointerFinding, candidates, read_pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.loading import Checkpoint, Search, load_step, search_newest
from speedtronic.checkpoint.quarantine import quarantine, restore_displaced
from speedtronic.checkpoint.records import FileEntry, Manifest, Pointer
from speedtronic.checkpoint.retention import Pruner, Retention
from speedtronic.checkpoint.selection import (
    CUT_SHORT,
    quarantine_poison,
    quarantine_rejected,
    refuse_if_anything_was_lost,
    remove_temporaries,
)
from speedtronic.errors import CheckpointError, CorruptError, StorageError, StorageFullError
from speedtronic.storage.base import (
    Storage,
    publish,
    publish_bytes,
    read_record,
    storage_full_error,
)


class CheckpointStore:
    """Saves, selects and loads the checkpoints of one run. The caller holds the run's lock.

    Args:
        storage: where the files are.
        keep_last, keep_best, keep_every: which checkpoints to keep, as `Retention` takes them.
        first_saves: steps at which the run's very first save can be. A payload alone at one of them
            is left of an interrupted first save; at any other step it may be somebody's.
        fence: called before anything is committed or deleted; raises when the lock was lost.

    Attributes:
        run_id: id of the run; made at the first save, adopted by `select`.
        config_fingerprint: recorded in every manifest.
        last_size_bytes: size of the payload last saved or selected; 0 before the first.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        keep_last: int | None,
        keep_best: int | None = None,
        keep_every: int | None = None,
        first_saves: Collection[int] = (),
        fence: Callable[[], None] | None = None,
    ) -> None:
        self._storage = storage
        self._pruner = Pruner(storage, Retention(keep_last, keep_best, keep_every))
        self._first_saves = first_saves
        self._fence = fence or (lambda: None)
        self._verified: int | None = None
        self.config_fingerprint = ""
        self.run_id: str | None = None
        self.last_size_bytes = 0

    @property
    def root(self) -> str:
        """The directory, for messages."""
        return self._storage.root

    def has_checkpoints(self) -> bool:
        """Whether an entry of any kind has the name of a pointer, payload or manifest."""
        if self._storage.exists(layout.POINTER):
            return True
        return any(layout.step_of(name) is not None for name in self._storage.entries())

    def save(self, state: dict[str, Any]) -> Pointer:
        """Write `state` as the checkpoint of `state["step"]` and move the pointer to it.

        Durable on return. A crash before that leaves the previous pointer and its files valid.

        Args:
            state: plain containers, numbers, strings and tensors on any device; not modified.

        Returns:
            The pointer now on disk.

        Raises:
            StorageFullError: no space; what was there before is whole.
            StorageError: the pointer did not move; safe to call again.
        """
        self._fence()
        self._storage.make_folder("")
        remove_temporaries(self._storage)
        self.run_id = self.run_id or str(uuid.uuid4())
        step = state["step"]
        identity = state_digest(state)
        if existing := self._already_committed(step, identity):
            return existing
        self._refuse_without_room(step)
        name = layout.payload_name(step)
        content = {**state, "run_id": self.run_id}
        digest, size = self._publish_payload(step, content)
        manifest = Manifest.of(
            content,
            FileEntry(name=name, size_bytes=size, digest=digest),
            state_digest=identity,
            config_fingerprint=self.config_fingerprint,
        )
        self._publish_bytes(layout.manifest_name(step), manifest.to_bytes())
        pointer = manifest.pointer()
        self._publish_bytes(layout.POINTER, pointer.to_bytes())
        self.last_size_bytes = size
        kept = {step} if self._verified is None else {step, self._verified}
        self._fence()
        self._pruner.prune(self.run_id, protected=kept)
        return pointer

    def select(self) -> Checkpoint | None:
        """Load the newest good checkpoint of this run, and repair the directory around it.

        Candidates are tried newest first. Damaged ones newer than the first good one go to
        quarantine with the reason, a pointer to another checkpoint is replaced, and temporaries of
        writers that died are deleted. If none is good, nothing is moved. Before all this, files
        that an interrupted save of their step had moved to quarantine are moved back.

        Returns:
            The checkpoint, or None in a directory where nothing was ever committed; the payload of
            an interrupted first save is in quarantine then.

        Raises:
            NoValidCheckpointError: files exist and none verifies, or one newer than the first good
                one is a link, a folder or the like; names each with its reason.
            LegacyStoreError: payloads of the older format, without any manifest.
            UnsupportedFormatError: a newer version wrote a checkpoint; nothing is moved.
        """
        found = read_pointer(self._storage)
        if found.pointer:
            self._fence()
            restore_displaced(self._storage, found.pointer)
        run_id = self.run_id or (found.pointer.run_id if found.pointer else None)
        search = search_newest(self._storage, run_id)
        if search.checkpoint is not None:
            self._adopt(search.checkpoint.manifest, found, search)
            return search.checkpoint
        refuse_if_anything_was_lost(self._storage, found, search.rejected, self._first_saves)
        for verdict in search.rejected:
            if verdict.status == "uncommitted":
                self._fence()
                quarantine(self._storage, verdict.candidate.files, CUT_SHORT)
        return None

    def load_step(self, step: int) -> Checkpoint:
        """Load the checkpoint of one step, of whichever run, as `loading.load_step` does."""
        return load_step(self._storage, step)

    def reject(self, step: int, reason: str) -> None:
        """Quarantine the checkpoint of `step`, even an intact one, if an older one is intact.

        Raises:
            NoValidCheckpointError: no older one is; nothing was moved.
        """
        self._fence()
        quarantine_poison(self._storage, step, reason)

    def confirms(self, pointer: Pointer) -> bool:
        """Whether the manifest on disk is the very one that `pointer` was made from."""
        try:
            data = read_record(self._storage, layout.manifest_name(pointer.step))
            return Manifest.from_file(data, pointer.step).pointer() == pointer
        except CheckpointError:
            return False

    def _already_committed(self, step: int, identity: str) -> Pointer | None:
        """Return the pointer to this very state if it is committed, and make sure it is durable.

        Any other checkpoint of the step goes to quarantine, and None is returned.
        """
        candidate = next((c for c in candidates(self._storage) if c.step == step), None)
        if candidate is not None and candidate.irregular:
            found = candidate.describe_irregular()
            raise StorageError(f"cannot save step {step}: {found}; nothing was changed")
        if candidate is None or not candidate.committed:
            return None
        try:
            manifest = candidate.manifest
            if manifest.run_id != self.run_id:
                reason = f"of run {manifest.run_id}; made way for step {step} of run {self.run_id}"
            elif manifest.state_digest != identity:
                reason = f"made way for another state of step {step}: {identity}"
            else:
                candidate.check()
                # The save that wrote it may have failed before its names were durable.
                self._storage.sync_folder()
                self._repair_pointer(manifest.pointer())
                return manifest.pointer()
        except CorruptError as error:
            reason = str(error)
        self._fence()
        quarantine(self._storage, candidate.files, reason)
        return None

    def _refuse_without_room(self, step: int) -> None:
        """Raise StorageFullError if less space is free than the last save took."""
        free = self._storage.free_bytes()
        if free is not None and free < self.last_size_bytes:
            raise self._full(step)

    def _publish_payload(self, step: int, content: dict[str, Any]) -> tuple[str, int]:
        name = layout.payload_name(step)
        try:
            return publish(
                self._storage,
                name,
                lambda file: codec.encode_payload(content, file),
                fence=self._fence,
            )
        except StorageFullError as error:  # what was written of it is deleted again
            raise self._full(step) from error

    def _full(self, step: int) -> StorageFullError:
        needed, free = self.last_size_bytes or None, self._storage.free_bytes()
        return storage_full_error(f"cannot save step {step} to {self.root}", needed, free)

    def _adopt(self, manifest: Manifest, found: PointerFinding, search: Search) -> None:
        """Make a checkpoint the one that the run goes on from, and repair what contradicts it."""
        self.run_id = manifest.run_id
        self._verified = manifest.step
        self.last_size_bytes = manifest.payload.size_bytes
        self._fence()
        remove_temporaries(self._storage)
        quarantine_rejected(self._storage, search.rejected, found, manifest)
        self._repair_pointer(manifest.pointer())

    def _repair_pointer(self, pointer: Pointer) -> None:
        if read_pointer(self._storage).pointer != pointer:
            self._publish_bytes(layout.POINTER, pointer.to_bytes())

    def _publish_bytes(self, name: str, content: bytes) -> None:
        publish_bytes(self._storage, name, content, fence=self._fence)
