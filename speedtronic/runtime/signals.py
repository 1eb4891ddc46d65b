"""Connects signals with a run: SIGTERM, SIGINT and SIGHUP stop its training, SIGUSR1 saves."""

import math
import os
import signal
import threading
import time
from functools import partial
from types import FrameType
from typing import Protocol, Self

from speedtronic.shutdown import SAVE_SIGNAL, STOP_SIGNALS, Handler, restore_handlers

# `timeout`, `uv run`, a terminal and Slurm's steps may each send one signal twice: to the process
# and to its process group. A repetition within this time is ignored.
SAME_SIGNAL_S = 1.0
SAVE_PATIENCE_S = 2.0  # how long a requested save waits before it interrupts a wait for data
REDELIVERY_S = 0.5  # shorter than SAME_SIGNAL_S, so that one too many is ignored


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


class SignalRedelivery:
    """Sends a signal again if its Python handler has not run within `REDELIVERY_S`.

    Python runs handlers in the main thread, between two operations. A signal that arrives just
    before that thread begins to wait for a lock does not interrupt the wait, and its handler would
    run only after it, which may be never. A second signal interrupts it.
    """

    def __init__(self) -> None:
        self._handled_at: dict[int, float] = {}
        self._closed = threading.Event()
        self._write_fd = -1
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the signals of the calling thread, the main one, until `close`."""
        read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._write_fd, False)
        arguments = (read_fd, threading.get_ident())
        self._thread = threading.Thread(target=self._watch, args=arguments, daemon=True)
        self._thread.start()
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def note_handled(self, number: int) -> None:
        """Record that the handler of a signal runs; every handler calls this first."""
        self._handled_at[number] = time.monotonic()

    def close(self) -> None:
        """Send nothing any more; call this before removing the handlers."""
        if self._thread is not None:
            self._closed.set()
            signal.set_wakeup_fd(-1)
            os.close(self._write_fd)
            self._thread.join()

    def _watch(self, read_fd: int, thread: int) -> None:
        with os.fdopen(read_fd, "rb", buffering=0) as arrived:
            while numbers := arrived.read(1):
                seen_at = time.monotonic()
                if self._closed.wait(REDELIVERY_S):
                    return
                # The handler may have run a moment before this thread read of the signal.
                if self._handled_at.get(numbers[0], -math.inf) < seen_at - REDELIVERY_S:
                    signal.pthread_kill(thread, numbers[0])


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
        self._redelivery = SignalRedelivery()

    def attach(self, trainer: SignalTarget) -> None:
        """Deliver stop and save requests to `trainer` from now on."""
        self._on_save.attach(trainer)
        self._trainer = trainer
        if self._former:
            self._redelivery.start()  # ends `enforce_grace_period`: a save may take longer

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._on_stop)
            self._former[SAVE_SIGNAL] = signal.signal(SAVE_SIGNAL, self._save)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._redelivery.close()
        self._on_save.close()
        restore_handlers(self._former)
        if self._received is not None and error is None:
            signal.raise_signal(self._received[0])

    def _save(self, number: int, frame: FrameType | None) -> None:
        self._redelivery.note_handled(number)
        self._on_save(number, frame)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._redelivery.note_handled(number)
        now = time.monotonic()
        if self._received is not None and now - self._received[1] < SAME_SIGNAL_S:
            return
        first, self._received = self._received is None, (number, now)
        if first and self._trainer is not None:
            self._trainer.request_stop()
        else:
            restore_handlers(self._former)
            signal.raise_signal(number)
