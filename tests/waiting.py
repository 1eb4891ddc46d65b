"""Waiting for the thing itself, with a limit, instead of for a while."""

import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from speedtronic.worker.chunk import ChunkWorker

# What the end of a child by a signal is called, however the child was started.
ENDINGS = [
    (signal.SIGKILL, "killed by SIGKILL (killed from outside, or out of memory"),
    (signal.SIGSEGV, "killed by SIGSEGV (a crash in native code"),
    (signal.SIGABRT, "killed by SIGABRT"),
    (signal.SIGTERM, "stopped on SIGTERM"),
]
ENDS_S = 20.0  # what ends by itself does so in a fraction of a second, but for a busy machine


def wait_until(predicate: Callable[[], bool], timeout_s: float) -> bool:
    """Whether `predicate` came true within `timeout_s`; looks every 10 ms."""
    never = threading.Event()
    for _ in range(round(timeout_s * 100)):
        if predicate():
            return True
        never.wait(0.01)
    return predicate()


class Processes:
    """Other processes, by pidfd: one not yet reaped has ended, and a reused pid is another."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds = [os.pidfd_open(pid) for pid in pids]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)

    def num_running(self) -> int:
        return len(self._fds) - len(select.select(self._fds, [], [], 0)[0])

    def end_within(self, timeout_s: float = ENDS_S) -> bool:
        return wait_until(lambda: self.num_running() == 0, timeout_s)


def kill_at_step(
    worker: ChunkWorker, metrics: Path, step: int, delay_s: float, done: threading.Event
) -> None:
    """SIGKILL the worker's process `delay_s` after `metrics` shows `step`, or not if `done` is set.

    Step 0 is reached as soon as there is a process, long before it trains.
    """
    while not done.wait(0.001):
        if worker.pid is not None and last_step(metrics) >= step:
            done.wait(delay_s)
            if not done.is_set() and worker.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
            return


def last_step(metrics: Path) -> int:
    """The step of the last whole line of a metrics file; 0 without any."""
    with suppress(OSError, ValueError, IndexError):
        return int(json.loads(metrics.read_bytes().split(b"\n")[-2])["step"])
    return 0
