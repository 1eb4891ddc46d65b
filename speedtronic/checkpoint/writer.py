"""Saving in the background: the caller pays for a copy in memory, a thread for everything else."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from speedtronic.checkpoint.records import Pointer
from speedtronic.checkpoint.snapshot import HostBuffers

Commit = Callable[[dict[str, Any]], tuple[Pointer, int]]


@dataclass(frozen=True)
class Saved:
    """A committed save.

    Attributes:
        pointer: to the checkpoint now on disk.
        stall_s: seconds for which the caller was held, waiting for the save before it included.
        durable_s: seconds from the call to the commit.
        size_bytes: of the payload.
    """

    pointer: Pointer
    stall_s: float
    durable_s: float
    size_bytes: int


class CheckpointWriter:
    """Commits states one after the other, at most one in flight.

    A save that failed raises its error from the next `save`, `finished` or `wait`, once; what was
    on disk before it is whole.

    Args:
        commit: makes a state durable and returns the pointer to it and the size of its payload;
            called in one other thread.
        background: False commits before `save` returns, without a copy in memory.
    """

    def __init__(self, commit: Commit, *, background: bool) -> None:
        self._commit = commit
        self._buffers = HostBuffers() if background else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
        self._in_flight: Future[tuple[Pointer, float, int]] | None = None
        self._stall_s = 0.0
        self._finished: list[Saved] = []

    def save(self, state: dict[str, Any]) -> None:
        """Take `state`; it may change as soon as this returns."""
        started = time.perf_counter()
        self._settle()
        if self._buffers is None:
            pointer, elapsed_s, size = self._durable(state, started)
            self._finished.append(Saved(pointer, elapsed_s, elapsed_s, size))
            return
        copy = self._buffers.copy(state)
        self._in_flight = self._thread.submit(self._durable, copy, started)
        self._stall_s = time.perf_counter() - started

    def finished(self) -> list[Saved]:
        """The saves committed since the last call, oldest first; does not wait."""
        if self._in_flight is not None and self._in_flight.done():
            self._settle()
        finished, self._finished = self._finished, []
        return finished

    def wait(self) -> list[Saved]:
        """As `finished`, once nothing is in flight."""
        self._settle()
        return self.finished()

    def close(self) -> None:
        """Return once nothing is in flight; the copies are given up."""
        self._thread.shutdown()

    def _settle(self) -> None:
        if self._in_flight is None:
            return
        wait([self._in_flight])  # an interrupt here loses nothing: it is still in flight
        future, self._in_flight = self._in_flight, None
        pointer, durable_s, size = future.result()
        self._finished.append(Saved(pointer, self._stall_s, durable_s, size))

    def _durable(self, state: dict[str, Any], started: float) -> tuple[Pointer, float, int]:
        if self._buffers is not None:
            self._buffers.wait()
        pointer, size = self._commit(state)
        return pointer, time.perf_counter() - started, size
