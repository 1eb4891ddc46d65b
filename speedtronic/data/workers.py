"""Make loader workers end with the trainer, and leave signals to it."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from speedtronic.liveness import end_with_parent
from speedtronic.shutdown import ALL_SIGNALS, block_signals, unblock_signals

GRACE_S = 0.5

# A worker has to be a direct child of this process for its watch on the parent to mean anything,
# which rules out a fork server, Python's own choice from 3.14 on.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"


class WorkerInit:
    """Initializes a loader worker, then calls `then`, the user's own `worker_init_fn`."""

    def __init__(self, training_pid: int, then: Callable[[int], None] | None = None) -> None:
        self._training_pid = training_pid
        self._then = then

    def __call__(self, worker_id: int) -> None:
        end_with_parent(self._training_pid)
        # Signals reach the whole process group; the trainer, which answers them, needs batches
        # until it has. Not SIG_IGN: programs that the user's data start would ignore them too.
        for number in ALL_SIGNALS:
            signal.signal(number, _left_to_the_trainer)
            signal.siginterrupt(number, False)
        unblock_signals()
        if self._then is not None:
            self._then(worker_id)


def _left_to_the_trainer(number: int, frame: FrameType | None) -> None:
    pass


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start workers with signals held back, which each lets come once its own handlers stand.

    Until then it would end on Ctrl-C, or take a request to stop for the trainer's. In this process
    they are held back only while it forks: the first worker may have to be waited for.
    """
    global _starting
    with nullcontext() if START_METHOD == "fork" else block_signals():
        _starting = True
        try:
            yield
        finally:
            _starting = False


_starting = False
_held: set[int] = set()


def _before_fork() -> None:
    if _starting:
        _held.clear()
        _held.update(signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS), {0})


def _after_fork_in_parent() -> None:
    if _held:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held - {0})
        _held.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent)


def adopt_workers(loader: DataLoader[Any]) -> None:
    """Make the workers of a user's loader end with the trainer, as ours do.

    One that insists on a fork server is left alone: its workers are not children of this process.
    """
    if loader.num_workers == 0:
        return
    if loader.multiprocessing_context is None:
        loader.multiprocessing_context = START_METHOD
    if loader.multiprocessing_context.get_start_method() != "forkserver":
        loader.worker_init_fn = WorkerInit(os.getpid(), loader.worker_init_fn)


def own_workers(iterator: Any) -> None:
    """Let the workers behind an iterator of a DataLoader end when torch or Python ends them.

    Both send SIGTERM, which they ignore, and Python would wait for ever when it exits.
    """
    seen = weakref.ref(iterator) if hasattr(iterator, "_workers") else None
    for worker in getattr(iterator, "_workers", []):
        worker._popen.terminate = partial(_end, worker._popen, seen)


def _end(process: Any, iterator: Any) -> None:
    _forget(iterator())
    process.kill()


def _forget(iterator: Any) -> None:
    """Keep torch from reporting a worker that we killed as failed."""
    if getattr(iterator, "_worker_pids_set", False):
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False


def shut_down_workers(iterator: Any) -> None:
    """End the workers behind an iterator of a DataLoader; any other thing has none.

    torch does this when the last reference goes, which a traceback can hold for long, and waits 5 s
    for each that is in the middle of a batch. Here all have `GRACE_S`.
    """
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is None:
        return
    _forget(iterator)
    killing = threading.Timer(GRACE_S, _kill, [iterator._workers])
    killing.start()
    try:
        shut_down()
    finally:
        killing.cancel()


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        worker.kill()
