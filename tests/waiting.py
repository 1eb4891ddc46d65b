"""Waiting for the thing itself, with a limit, instead of for a while."""

import os
import select
import threading
from collections.abc import Callable, Iterable


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

    def end_within(self, timeout_s: float) -> bool:
        return wait_until(lambda: self.num_running() == 0, timeout_s)
