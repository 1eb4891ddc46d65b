"""CheckpointStore: save, select and load, in an order that no crash can turn against the run.

Commit order: payload, manifest, pointer; each published whole and durable before the next begins.
Deletion order: manifest, payload. So at every moment a checkpoint with a manifest is complete, and
once there was one there is one.
"""

import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from speedtronic.checkpoint import codec, layout
from speedtronic.checkpoint.candidates import (
    Candidate,
    PointerFinding,
    candidates,
    foreign_to,
    read_pointer,
)
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.quarantine import put_back, quarantine
from speedtronic.checkpoint.records import FileEntry, Manifest, Pointer
from speedtronic.checkpoint.retention import Pruner, Retention
from speedtronic.checkpoint.selection import (
    CUT_SHORT,
    irregular,
    refuse_if_anything_was_lost,
    refuse_irregular,
    remove_temporaries,
    set_aside_damaged,
    set_aside_poison,
)
from speedtronic.errors import (
    CheckpointError,
    CorruptError,
    NoValidCheckpointError,
    StorageError,
    StorageFullError,
)
from speedtronic.storage.base import Storage, publish, read_record, storage_full_error


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: its manifest, and the state with tensors on the CPU."""

    manifest: Manifest
    state: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run in one directory. The caller holds the run's lock.

    Args:
        storage: where the files are.
        keep_last: how many checkpoints to keep, >= 1; None keeps all.
        keep_best: how many of those with the lowest validation loss to keep besides.
        keep_every: steps that this divides are kept too.
        first_saves: steps at which the run's very first save can be. A payload alone at one of them
            is what is left of a first save that was cut short; any other may be somebody's.
        fence: called before anything is committed or deleted; raises when the lock was lost.

    Attributes:
        run_id: whose checkpoints these are; made at the first save, adopted by `select`.
        config_fingerprint: recorded in every manifest.
        last_size_bytes: of the payload last saved or selected; 0 before the first.
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
        """Whether anything here is called as a run's pointer, payload or manifest, links too."""
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
        """Load the newest good checkpoint of this run, and mend what stands in its way.

        Candidates are tried newest first. Those rejected on the way to a good one go to quarantine
        with the reason, a pointer that is not to the one found is replaced, and temporaries of
        writers that died are removed. If nothing is good, nothing is moved; but what made way for a
        save that never came through is put back first.

        Returns:
            The checkpoint, or None in a directory where nothing was ever committed; the payload of
            a first save that was cut short is in quarantine then.

        Raises:
            NoValidCheckpointError: there are files and none verifies, or one before the first that
                does is a link, a folder or the like; names each with its reason.
            LegacyStoreError: payloads of the older format, without any manifest.
            UnsupportedFormatError: a checkpoint that a newer version wrote; nothing is moved.
        """
        found = read_pointer(self._storage)
        if found.pointer:
            self._fence()
            put_back(self._storage, found.pointer)
        run_id = self.run_id or (found.pointer.run_id if found.pointer else None)
        rejected: list[tuple[Candidate, str]] = []
        uncommitted: list[Candidate] = []
        foreign = 0
        for candidate in candidates(self._storage):
            if candidate.irregular and not foreign_to(run_id, candidate):
                refuse_irregular(self._storage, candidate)
            if not candidate.committed:
                uncommitted.append(candidate)
                continue
            try:
                if run_id is not None and candidate.manifest.run_id != run_id:
                    foreign += 1
                    continue
                state = candidate.load()
            except CorruptError as error:
                rejected.append((candidate, str(error)))
                continue
            checkpoint = Checkpoint(candidate.manifest, state)
            self._adopt(checkpoint.manifest, found, rejected)
            return checkpoint
        refuse_if_anything_was_lost(
            self._storage, found, rejected, uncommitted, foreign, self._first_saves
        )
        for candidate in uncommitted:
            self._fence()
            quarantine(self._storage, candidate.files, CUT_SHORT)
        return None

    def load_step(self, step: int) -> Checkpoint:
        """Load the checkpoint of one step, of whichever run; nothing is changed.

        Raises:
            NoValidCheckpointError: it is not there or not good; names the steps that are.
        """
        found = list(candidates(self._storage))
        for candidate in found:
            if candidate.step == step and candidate.committed:
                try:
                    return Checkpoint(candidate.manifest, candidate.load())
                except CorruptError as error:
                    path = f"{self.root}/{layout.payload_name(step)}"
                    raise NoValidCheckpointError(f"{path}: {error}") from error
        there = ", ".join(str(c.step) for c in reversed(found) if c.committed) or "none"
        raise NoValidCheckpointError(
            f"{self.root} has no checkpoint of step {step}; committed there: {there}"
        )

    def reject(self, step: int, reason: str) -> None:
        """Set the checkpoint of `step` aside, good as it may be, if there is a good one before it.

        Raises:
            NoValidCheckpointError: there is none; nothing was moved.
        """
        self._fence()
        set_aside_poison(self._storage, step, reason)

    def confirms(self, pointer: Pointer) -> bool:
        """Whether the manifest on disk is exactly what `pointer` was made from."""
        try:
            data = read_record(self._storage, layout.manifest_name(pointer.step))
            return Manifest.from_file(data, pointer.step).pointer() == pointer
        except CheckpointError:
            return False

    def _already_committed(self, step: int, identity: str) -> Pointer | None:
        """The pointer to this very state if it is on disk; else make room for it."""
        candidate = next((c for c in candidates(self._storage) if c.step == step), None)
        if candidate is not None and candidate.irregular:
            found = irregular(self._storage, candidate)
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
                # Its names may not be durable: the save that made them may have failed at that.
                self._storage.sync_folder()
                self._repair_pointer(manifest.pointer())
                return manifest.pointer()
        except CorruptError as error:
            reason = str(error)
        self._fence()
        quarantine(self._storage, candidate.files, reason)
        return None

    def _refuse_without_room(self, step: int) -> None:
        """A save needs about what the last one took; without that it would only fill the disk."""
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
        except StorageFullError as error:  # what was written of it is gone again
            raise self._full(step) from error

    def _full(self, step: int) -> StorageFullError:
        needed, free = self.last_size_bytes or None, self._storage.free_bytes()
        return storage_full_error(f"cannot save step {step} to {self.root}", needed, free)

    def _adopt(
        self, manifest: Manifest, found: PointerFinding, rejected: list[tuple[Candidate, str]]
    ) -> None:
        self.run_id = manifest.run_id
        self._verified = manifest.step
        self.last_size_bytes = manifest.payload.size_bytes
        self._fence()
        remove_temporaries(self._storage)
        set_aside_damaged(self._storage, rejected, found, manifest)
        self._repair_pointer(manifest.pointer())

    def _repair_pointer(self, pointer: Pointer) -> None:
        if read_pointer(self._storage).pointer != pointer:
            self._publish_bytes(layout.POINTER, pointer.to_bytes())

    def _publish_bytes(self, name: str, content: bytes) -> None:
        publish(self._storage, name, lambda file: file.write(content), fence=self._fence)
