"""Names the signals that stop training or ask for a checkpoint, and passes them between processes.

SIGTERM, SIGINT and SIGHUP stop training; SIGUSR1 saves a checkpoint and training goes on. A stop
loses no completed update: the current one is finished, or undone as a whole. Waits (for data, for a
validation) are interrupted by the exception `Interrupted`, which no other code may catch.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVE_SIGNAL = signal.SIGUSR1
ALL_SIGNALS = (*STOP_SIGNALS, SAVE_SIGNAL)

Handler = Callable[[int, FrameType | None], object] | int | None
"""What `signal.signal` returns and takes; None for a handler that Python did not install."""


class Interrupted(BaseException):
    """Raised by a signal handler while training waits for something that can be repeated."""


class InterruptibleWait:
    """A context in which `interrupt` raises `Interrupted`, at most once; outside it does nothing.

    Only one thread at a time may enter it, and `interrupt` raises only in that thread; a signal
    handler runs in the main thread. Clean-up after an interruption belongs outside the context.
    """

    def __init__(self) -> None:
        self._thread: int | None = None

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread = None

    def interrupt(self) -> None:
        """Raise `Interrupted` if this thread is in the context."""
        if self._thread == threading.get_ident():
            self._thread = None
            raise Interrupted


@contextmanager
def enforce_grace_period(grace_s: float, end: Callable[[int], None]) -> Iterator[None]:
    """Call `end(signal)` if the block is still running `grace_s` seconds after a stop signal.

    `end` is called in another thread, so it also works while the main thread is in native code or
    in a system call that cannot be interrupted, where no Python handler runs. It is switched off
    once a trainer is attached, which handles stop signals itself.
    """
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    left = threading.Event()

    def watch() -> None:
        with os.fdopen(read_fd, "rb", buffering=0) as received:
            while number := received.read(1):
                if number[0] in STOP_SIGNALS and not left.wait(grace_s):
                    end(number[0])

    threading.Thread(target=watch, name="ended-within", daemon=True).start()
    former = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(former)
        os.close(write_fd)


@contextmanager
def block_signals() -> Iterator[None]:
    """Block all handled signals in this thread, and in the processes that it starts meanwhile.

    A new process calls `unblock_signals` once its own handlers are installed; before that, Ctrl-C
    or a request to save would end it.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def unblock_signals() -> None:
    """Unblock in this process the signals that its parent blocked with `block_signals`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)


@contextmanager
def forward_signals(child_pid: Callable[[], int | None]) -> Iterator[None]:
    """Forward SIGUSR1 to the training child, and treat SIGHUP as SIGTERM; for its parent process.

    SIGTERM and SIGINT are left alone: they end the parent, which then stops the child. Outside the
    main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def save(number: int, frame: FrameType | None) -> None:
        if (pid := child_pid()) is not None:
            os.kill(pid, number)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    former: dict[int, Handler] = {SAVE_SIGNAL: signal.signal(SAVE_SIGNAL, save)}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        former[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        restore_handlers(former)


def restore_handlers(former: Mapping[int, Handler]) -> None:
    """Install what `signal.signal` returned; handlers that Python did not install are lost."""
    for number, handler in former.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)
