"""Loader worker processes: their life and their signals are the trainer's affair."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from speedtronic.lifetime import end_with_parent

# A worker has to be a direct child of this process for its watch on the parent to mean anything,
# which rules out a fork server, Python's own choice from 3.14 on.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class WorkerInit:
    """What a loader worker does first, before `then`, the user's own."""

    def __init__(self, training_pid: int, then: Callable[[int], None] | None = None) -> None:
        self._training_pid = training_pid
        self._then = then

    def __call__(self, worker_id: int) -> None:
        end_with_parent(self._training_pid)
        # Ctrl-C reaches the whole group; the trainer finishes its step with batches from here.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # A forked worker has the trainer's handler, which would only note the wish to stop.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if self._then is not None:
            self._then(worker_id)


@contextmanager
def starting_workers() -> Iterator[None]:
    """Hold stop signals back while workers start.

    A worker inherits this and lets go of it once its own handlers stand: until then it would end
    on Ctrl-C, or take a request to stop for the trainer's.
    """
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)


def adopt_workers(loader: DataLoader[Any]) -> None:
    """Let the workers of a loader that is not ours live and end as ours do.

    One that insists on a fork server is left alone: its workers are not children of this process.
    """
    if loader.num_workers == 0:
        return
    if loader.multiprocessing_context is None:
        loader.multiprocessing_context = START_METHOD
    if loader.multiprocessing_context.get_start_method() != "forkserver":
        loader.worker_init_fn = WorkerInit(os.getpid(), loader.worker_init_fn)


def shut_down_workers(iterator: Any) -> None:
    """End the workers behind an iterator of a DataLoader; any other thing has none.

    torch does this when the last reference goes, which a traceback can hold for long.
    """
    shut_down = getattr(iterator, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()
