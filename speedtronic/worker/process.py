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

STOPPED = 128 + signal.SIGTERM  # the exit code after a stop in good order


class Child:
    """A process that answers one request after another; it runs from here to `discard`."""

    def __init__(self) -> None:
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", "speedtronic.worker.chunk_main", str(write_fd)]
        try:
            with block_signals():
                self._process = subprocess.Popen(
                    [*command, str(os.getpid())],
                    stdin=subprocess.PIPE,
                    pass_fds=[write_fd],
                    env=openmp.environment(),
                    text=True,
                )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._events = os.fdopen(read_fd, "rb", buffering=0)
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
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
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
        for stream in (self._process.stdin, self._events):
            if stream is not None:
                with suppress(BrokenPipeError):  # a request that nobody will read
                    stream.close()


def _ending(code: int) -> str:
    if code == STOPPED:
        return "stopped on SIGTERM"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hints = {
        "SIGKILL": " (killed from outside, or out of memory: see dmesg)",
        "SIGSEGV": " (a crash in native code: its stack is on standard error)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
