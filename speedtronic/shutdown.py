"""What signals do to training: SIGTERM, SIGINT and SIGHUP stop it, SIGUSR1 saves and goes on.

A stop loses nothing that was trained: an update at hand ends, or is undone whole. What only waits
(for data, for a validation) is interrupted by `Interrupted`, which nothing else may catch.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Protocol, Self

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SAVE_SIGNAL = signal.SIGUSR1
ALL_SIGNALS = (*STOP_SIGNALS, SAVE_SIGNAL)

# `timeout`, `uv run`, a terminal and Slurm's steps may each send the same signal, once to the
# process and once to its group.
SAME_SIGNAL_S = 1.0
SAVE_PATIENCE_S = 2.0  # how long a save that was asked for waits for the end of an update


class Interrupted(BaseException):
    """A signal came while training waited for something that can be repeated."""


class Waiting:
    """A context in which `interrupt` raises `Interrupted`, at most once; outside it does nothing.

    Entered in one thread at a time; `interrupt` raises only when called in that thread, as a signal
    handler is. What has to be put back after an interruption belongs outside the context.
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


class Answering(Protocol):
    """What trains, as signals see it; `Trainer` is one. Both are safe in a signal handler."""

    def request_stop(self) -> None: ...
    def request_save(self) -> None: ...
    @property
    def save_requested(self) -> bool: ...


class SaveSignal:
    """A handler of SIGUSR1: asks `trainer` to save, now or as soon as there is one.

    An update that is being made is waited for. A wait for data or a validation that lasts for more
    than `SAVE_PATIENCE_S` is interrupted by the same signal, and begins anew after the save.
    """

    def __init__(self) -> None:
        self._trainer: Answering | None = None
        self._early = False
        self._again: threading.Timer | None = None
        self._received_at = -SAME_SIGNAL_S

    def attach(self, trainer: Answering) -> None:
        """From now on `trainer` is asked."""
        self._trainer = trainer
        if self._early:
            trainer.request_save()

    def close(self) -> None:
        """Send no signal any more; to be called before the handler is taken away."""
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

    def _ask_again(self, trainer: Answering, thread: int) -> None:
        if trainer.save_requested:
            self._received_at = -SAME_SIGNAL_S
            signal.pthread_kill(thread, SAVE_SIGNAL)


class TrainingSignals:
    """Handlers while a run is built, trained and closed; a context manager.

    The first stop signal is turned into `request_stop` of the attached trainer, and raised when the
    context ends. Before there is a trainer, and when it comes again more than a second later, it
    does at once what it did before. A signal that was ignored stays ignored, as under `nohup`.
    Outside the main thread, where Python allows no handlers, nothing is changed.
    """

    def __init__(self) -> None:
        self._former: dict[int, Any] = {}
        self._trainer: Answering | None = None
        self._on_save = SaveSignal()
        self._received: tuple[int, float] | None = None

    def attach(self, trainer: Answering) -> None:
        """From now on `trainer` is stopped and asked to save."""
        self._on_save.attach(trainer)
        self._trainer = trainer
        if self._former:
            signal.set_wakeup_fd(-1)  # of `ended_within`: from here on there may be a save to make

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._former[number] = signal.signal(number, self._on_stop)
            self._former[SAVE_SIGNAL] = signal.signal(SAVE_SIGNAL, self._on_save)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._on_save.close()
        put_back(self._former)
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
            put_back(self._former)
            signal.raise_signal(number)


@contextmanager
def ended_within(grace_s: float, end: Callable[[int], None]) -> Iterator[None]:
    """Call `end` with a stop signal if the block has not ended `grace_s` after it came.

    From another thread, so that it is called also while the main thread is in native code or in a
    system call that is not interrupted, where no handler runs. Training, once it has begun, answers
    by itself.
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
def held_back() -> Iterator[None]:
    """Hold signals back in this thread, and in processes that it starts until they let them come.

    Until its own handlers stand, a new process would end on Ctrl-C, or on a request to save.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ALL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def let_come() -> None:
    """End in this process what `held_back` began in its parent."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ALL_SIGNALS)


@contextmanager
def passed_on(child_pid: Callable[[], int | None]) -> Iterator[None]:
    """Handlers for the parent of a process that trains: SIGUSR1 goes to it, SIGHUP is SIGTERM.

    SIGTERM and SIGINT stay as they are: they end the parent, which then stops the process. Outside
    the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def save(number: int, frame: FrameType | None) -> None:
        if (pid := child_pid()) is not None:
            os.kill(pid, number)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    former: dict[int, Any] = {SAVE_SIGNAL: signal.signal(SAVE_SIGNAL, save)}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        former[signal.SIGHUP] = signal.signal(signal.SIGHUP, stop)
    try:
        yield
    finally:
        put_back(former)


def put_back(former: Mapping[int, Any]) -> None:
    """Install the handlers that `signal.signal` returned; those that are not Python's are lost."""
    for number, handler in former.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


POLL_S = 0.2


def end_with_parent(parent_pid: int) -> None:
    """End this process, by SIGKILL, within `POLL_S` of its parent's end; at once if already so.

    Nothing is flushed and no cleanup runs: what must survive is durable before, as for any crash.

    A thread that polls is the one way without a gap. PR_SET_PDEATHSIG fires when the spawning
    *thread* ends, not the process; torch's own loader workers look only every 5 s; and a pipe that
    closes with its owner stays open in grandchildren that inherited it. The thread stands still
    once the interpreter shuts down, which takes a second with torch: where a process sees for
    itself that its parent is gone, it ends by `end_as_orphan`, not by returning.

    Args:
        parent_pid: the direct parent, as it knew itself (`os.getpid()` there): asking here for
            `os.getppid()` would miss a parent that ended before the call.
    """
    _end_if_orphan(parent_pid)
    threading.Thread(target=_watch, args=(parent_pid,), name="end-with-parent", daemon=True).start()


def _watch(parent_pid: int) -> None:
    never = threading.Event()
    while not never.wait(POLL_S):
        _end_if_orphan(parent_pid)


def end_as_orphan() -> None:
    """End this process at once, as `end_with_parent` would in a moment."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end_if_orphan(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        end_as_orphan()
