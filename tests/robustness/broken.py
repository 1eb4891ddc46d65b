"""Stores that are broken on purpose, one promise each: the suite must catch every one of them."""

from typing import Any, BinaryIO
from unittest import mock

from speedtronic.checkpoint import Checkpoint, CheckpointStore, Pointer, layout, reading
from speedtronic.storage.base import Storage
from tests.robustness.invariants import MakeStore
from tests.robustness.stage import FIRST_SAVES, real_store


class _Over:
    """Another storage with something changed."""

    def __init__(self, below: Storage) -> None:
        self._below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class WithoutFsync(_Over):
    def sync(self, file: BinaryIO) -> None:
        pass


class WithoutFolderFsync(_Over):
    def sync_folder(self, folder: str = "") -> None:
        pass


class RenameBeforeFsync(_Over):
    def sync(self, file: BinaryIO) -> None:
        self._file = file

    def rename(self, old: str, new: str) -> None:
        self._below.rename(old, new)
        self._below.sync(self._file)


class PointerBeforePayload(_Over):
    def rename(self, old: str, new: str) -> None:
        if new.endswith(".pt"):
            self._payload = (old, new)
            return
        self._below.rename(old, new)
        if new == layout.POINTER:
            self._below.sync_folder()
            self._below.rename(*self._payload)


class PruneBeforePointer(CheckpointStore):
    """What retention will delete once the save is committed, this one deletes before."""

    def __init__(self, storage: Storage, *, keep_last: int) -> None:
        super().__init__(storage, keep_last=keep_last, first_saves=FIRST_SAVES)
        self._disk, self._count = storage, keep_last

    def save(self, state: dict[str, Any]) -> Pointer:
        steps = sorted(layout.steps_newest_first(self._disk.list()), reverse=True)
        for step in steps[self._count - 1 :]:
            self._disk.delete(layout.manifest_name(step))
            self._disk.sync_folder()
            self._disk.delete(layout.payload_name(step))
        return super().save(state)


class DigestNotChecked(CheckpointStore):
    """Takes whatever torch loads, as most trainers do."""

    def select(self) -> Checkpoint | None:
        with mock.patch.object(reading, "_compare"):
            return super().select()


def over(storage: type[_Over]) -> MakeStore:
    """The real store on such a storage."""
    return lambda below, *, keep_last: real_store(storage(below), keep_last=keep_last)  # type: ignore[arg-type]


BROKEN: dict[str, MakeStore] = {
    "fsync removed": over(WithoutFsync),
    "rename before fsync": over(RenameBeforeFsync),
    "directory fsync removed": over(WithoutFolderFsync),
    "pointer before payload": over(PointerBeforePayload),
    "prune before pointer": PruneBeforePointer,
    "digest not checked": DigestNotChecked,
}
