"""The process of `chunk_process` as its parent holds it: requests in, events out, and its end."""

import json
import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from speedtronic.errors import WorkerDied
from speedtronic.shutdown import block_signals
from speedtronic.worker import openmp
from speedtronic.worker.standby import STANDBY, UNKNOWN_CODE

STOPPED = 128 + signal.SIGTERM  # the exit code after a stop in good order


class Child:
    """A process that answers one request after another; it runs from here to `discard`.

    Args:
        from_standby: fork it from the standby where there is one, instead of starting Python.
    """

    def __init__(self, *, from_standby: bool = False) -> None:
        input_fd, requests_fd = os.pipe()
        events_fd, told_fd = os.pipe()
        try:
            forked = STANDBY.fork(input_fd, told_fd) if from_standby else None
            self._process = forked or _start(input_fd, told_fd)
        except BaseException:
            os.close(requests_fd)
            os.close(events_fd)
            raise
        finally:
            os.close(input_fd)
            os.close(told_fd)
        self._requests = os.fdopen(requests_fd, "w", encoding="utf-8")
        self._events = os.fdopen(events_fd, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """By its exit code: loader workers of a dead process hold its pipe open for a while."""
        return self._process.poll() is not None

    def send(self, request: dict[str, Any]) -> None:
        """Hand it a request.

        Raises:
            WorkerDied: it has ended.
        """
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
        except BrokenPipeError:
            raise self.death() from None

    def events(self, timeout_s: float) -> list[dict[str, Any]]:
        """The events that have come, waiting so long for the first; empty if there are none."""
        while self._selector.select(timeout_s):
            data = self._events.read(1 << 16)
            *lines, self._unread = (self._unread + data).split(b"\n")
            if lines or not data:
                return [json.loads(line) for line in lines]
        return []

    def death(self) -> WorkerDied:
        """How it ended, in words; waits for the end."""
        code = self._process.wait()
        return WorkerDied(f"worker {self.pid} {_ending(code)}", on_request=code == STOPPED)

    def ask_to_stop(self, grace_s: float) -> bool:
        """Whether it ended within `grace_s` of being asked to."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def discard(self) -> None:
        """Make sure that it is dead and reaped, so that its lock is free."""
        if not self.has_ended:
            self._process.kill()
        self._process.wait()
        self._selector.close()
        for stream in (self._requests, self._events):
            with suppress(BrokenPipeError):  # a request that nobody will read
                stream.close()


def _start(input_fd: int, events_fd: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "speedtronic.worker.chunk_main", str(events_fd)]
    with block_signals():
        return subprocess.Popen(
            [*command, str(os.getpid())],
            stdin=input_fd,
            pass_fds=[events_fd],
            env=openmp.environment(),
        )


def _ending(code: int) -> str:
    if code == STOPPED:
        return "stopped on SIGTERM"
    if code == UNKNOWN_CODE:
        return "ended, and so did the standby process, which alone could have told how"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hints = {
        "SIGKILL": " (killed from outside, or out of memory: see dmesg)",
        "SIGSEGV": " (a crash in native code: its stack is on standard error)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
