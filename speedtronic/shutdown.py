"""Handles the signals that stop training or ask for a checkpoint.

SIGTERM, SIGINT and SIGHUP stop training; SIGUSR1 saves a checkpoint and training goes on. A stop
loses no completed update: the current one is finished, or undone as a whole. Waits (for data, for a
validation) are interrupted by the exception `Interrupted`, which no other code may catch.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Protocol, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVE_SIGNAL = signal.SIGUSR1
ALL_SIGNALS = (*STOP_SIGNALS, SAVE_SIGNAL)

# `timeout`, `uv run`, a terminal and Slurm's steps may each send one signal twice: to the process
# and to its process group. A repetition within this time is ignored.
SAME_SIGNAL_S = 1.0
SAVE_PATIENCE_S = 2.0  # how long a requested save waits before it interrupts a wait for data

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


class SignalTarget(Protocol):
    """What the signal handlers need of a trainer. Each member may be used in a signal handler."""

    def request_stop(self) -> None: ...
    def request_save(self) -> None: ...
    @property
    def save_requested(self) -> bool: ...


class SaveSignal:
    """Handles SIGUSR1: asks the trainer to save, or remembers the request until one is attached.

    The save happens after the current update. If training still waits for data, or validates, after
    `SAVE_PATIENCE_S`, the same signal is sent again and interrupts that; it is done anew later.
    """

    def __init__(self) -> None:
        self._trainer: SignalTarget | None = None
        self._early = False
        self._again: threading.Timer | None = None
        self._received_at = -SAME_SIGNAL_S

    def attach(self, trainer: SignalTarget) -> None:
        """Send requests to `trainer` from now on, one that came earlier included."""
        self._trainer = trainer
        if self._early:
            trainer.request_save()

    def close(self) -> None:
        """Cancel the repeated signal; call this before removing the handler."""
        if self._again is not None:
            self._again.cancel()
            self._again.join()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now, trainer = time.monotonic(), self._trainer
        if now - self._received_at < SAME_SIGNAL_S:
            return
        self._received_at = now
        if trainer is None:
            self._early = True
            return
        ask_again = partial(self._ask_again, trainer, threading.get_ident())
        self._again = threading.Timer(SAVE_PATIENCE_S, ask_again)
        self._again.daemon = True
        self._again.start()
        trainer.request_save()

    def _ask_again(self, trainer: SignalTarget, thread: int) -> None:
        if trainer.save_requested:
            self._received_at = -SAME_SIGNAL_S
            signal.pthread_kill(thread, SAVE_SIGNAL)


class TrainingSignals:
    """Installs signal handlers while a run is built, trained and closed; a context manager.

    The first stop signal calls `request_stop` of the attached trainer and is raised again when the
    context ends. A stop signal acts at once, as without these handlers, if no trainer is attached
    yet or if it is repeated more than a second later. Signals that were ignored stay ignored, as
    under `nohup`. Outside the main thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self) -> None:
        self._former: dict[int, Handler] = {}
        self._trainer: SignalTarget | None = None
        self._on_save = SaveSignal()
        self._received: tuple[int, float] | None = None

    def attach(self, trainer: SignalTarget) -> None:
        """Deliver stop and save requests to `trainer` from now on."""
        self._on_save.attach(trainer)
        self._trainer = trainer
        if self._former:
            signal.set_wakeup_fd(-1)  # ends `enforce_grace_period`: a save may take longer

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._on_stop)
            self._former[SAVE_SIGNAL] = signal.signal(SAVE_SIGNAL, self._on_save)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._on_save.close()
        restore_handlers(self._former)
        if self._received is not None and error is None:
            signal.raise_signal(self._received[0])

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is not None and now - self._received[1] < SAME_SIGNAL_S:
            return
        first, self._received = self._received is None, (number, now)
        if first and self._trainer is not None:
            self._trainer.request_stop()
        else:
            restore_handlers(self._former)
            signal.raise_signal(number)


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
