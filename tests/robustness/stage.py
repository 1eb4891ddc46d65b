"""The processes of a run on a disk with faults, and the oracle that notes what they are told."""

from functools import lru_cache
from typing import Any

import torch

from speedtronic.checkpoint import CheckpointStore
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.records import Pointer
from speedtronic.checkpoint.writer import CheckpointWriter
from speedtronic.errors import StorageError
from speedtronic.storage.base import Storage
from tests.facts import facts_at
from tests.robustness.bucket import Bucket, S3Bucket
from tests.robustness.failpoints import Failpoints
from tests.robustness.invariants import MakeStore, Oracle, Place, Saved

FIRST_SAVES = (2,)


def state_at(step: int, fill: float = 0.0) -> dict[str, Any]:
    """The smallest state with a payload of several blocks, different for each step and `fill`."""
    return {**facts_at(step), "model": {"weight": torch.full((8, 16), step + fill)}}


def real_store(storage: Storage, *, keep_last: int) -> CheckpointStore:
    """The store of a run that saves at every second step."""
    return CheckpointStore(storage, keep_last=keep_last, first_saves=FIRST_SAVES)


@lru_cache(maxsize=4096)
def saved_at(step: int, fill: float = 0.0) -> Saved:
    """What the oracle notes of that state."""
    return step, state_digest(state_at(step, fill))


class Stage:
    """A disk, the faults on the way to it, the oracle, and what the processes of a run do there.

    Args:
        disk: the files.
        oracle: what was promised so far.
        storage: what a process is given for `disk`.
        keep_last, make_store, background: of each store; with a background writer or without.
        try_again: whether a process repeats a save that failed, or gives up.

    Attributes:
        broken: promises that a process saw broken while it ran.
    """

    def __init__(
        self,
        disk: Place,
        oracle: Oracle,
        storage: Failpoints | Bucket | S3Bucket,
        *,
        keep_last: int,
        make_store: MakeStore,
        background: bool,
        try_again: bool = False,
    ) -> None:
        self.disk = disk
        self.oracle = oracle
        self.storage = storage
        self._keep_last = keep_last
        self._make_store = make_store
        self._background = background
        self._try_again = try_again
        self.broken: list[str] = []

    def process(self) -> "Process":
        """A new process of the run; the one before it has ended."""
        store = self._make_store(self.storage, keep_last=self._keep_last)
        return Process(
            store,
            self.oracle,
            self.broken,
            background=self._background,
            try_again=self._try_again,
        )

    def damage(self, name: str, content: bytes = b"rot") -> None:
        """Spoil a file behind the run's back."""
        self.disk.damage(name, content)
        self.oracle.damaged.add(content)


class Process:
    """One process of a training run, as the store sees it."""

    def __init__(
        self,
        store: CheckpointStore,
        oracle: Oracle,
        broken: list[str],
        *,
        background: bool,
        try_again: bool,
    ) -> None:
        self._store = store
        self._oracle = oracle
        self._broken = broken
        self._writer = CheckpointWriter(self._commit, background=True) if background else None
        self._try_again = try_again

    def resume(self) -> None:
        """Go on from what the store selects."""
        checkpoint = self._store.select()
        saved = checkpoint and (checkpoint.state["step"], state_digest(checkpoint.state))
        if not self._oracle.allows(saved):
            self._broken.append(f"went on from {saved}: {self._oracle}")
        self._oracle.goes_on_from(saved)

    def save(self, *steps: int, fill: float = 0.0) -> None:
        """Save at each of these steps; with a background writer each while the last is written."""
        for step in steps:
            state = state_at(step, fill)
            self._oracle.begins(saved_at(step, fill))
            if self._writer is None:
                try:
                    pointer = self._store.save(state)
                except StorageError:
                    if not self._try_again:
                        raise
                    pointer = self._store.save(state)  # "safe to call again"
                self._acknowledge(pointer)
                continue
            self._writer.save(state)
            state["model"]["weight"].fill_(-1.0)  # the optimizer goes on at once
            for finished in self._writer.finished():
                self._acknowledge(finished.pointer)

    def end(self) -> None:
        """Return once nothing is in flight, as a chunk does."""
        if self._writer is not None:
            for finished in self._writer.wait():
                self._acknowledge(finished.pointer)

    def close(self) -> None:
        """Leave no thread behind, whatever became of the process."""
        if self._writer is not None:
            self._writer.close()

    def _acknowledge(self, pointer: Pointer) -> None:
        self._oracle.acknowledges((pointer.step, pointer.state_digest))

    def _commit(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        return self._store.save(state), self._store.last_size_bytes
