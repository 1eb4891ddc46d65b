"""Starts a child process that reads messages from its parent and answers in lines."""

import os
import selectors
import signal
import subprocess
import sys
from contextlib import suppress

from speedtronic.errors import WorkerDied
from speedtronic.shutdown import block_signals
from speedtronic.worker import openmp
from speedtronic.worker.forked_process import UNKNOWN_CODE, ForkedProcess
from speedtronic.worker.messages import Message, to_line
from speedtronic.worker.standby import STANDBY

STOPPED = 128 + signal.SIGTERM  # the exit code after a stop in good order


class ChildProcess:
    """A process that answers one request after another; it runs from here to `discard`.

    Args:
        module: run as `python -m MODULE ANSWERS_FD PARENT_PID`, with requests on standard input.
        from_standby: fork it from the standby instead, where there is one; it serves training.
        safe_path: keep the working directory off the import path (`python -P`).
    """

    def __init__(self, module: str, *, from_standby: bool = False, safe_path: bool = False) -> None:
        input_fd, requests_fd = os.pipe()
        answers_fd, output_fd = os.pipe()
        flags = ["-P"] if safe_path else []
        try:
            forked = STANDBY.fork(input_fd, output_fd) if from_standby else None
            self._process: ForkedProcess | subprocess.Popen[bytes] = forked or _start(
                [*flags, "-m", module], input_fd, output_fd
            )
        except BaseException:
            os.close(requests_fd)
            os.close(answers_fd)
            raise
        finally:
            os.close(input_fd)
            os.close(output_fd)
        self._requests = os.fdopen(requests_fd, "w", encoding="utf-8")
        self._answers = os.fdopen(answers_fd, "rb", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)
        self._unread = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has an exit code; loader workers of a dead process hold its pipe open."""
        return self._process.poll() is not None

    def send(self, message: Message) -> None:
        """Send it a message.

        Raises:
            WorkerDied: it has ended.
        """
        try:
            self._requests.write(to_line(message))
            self._requests.flush()
        except BrokenPipeError:
            raise self.death() from None

    def lines(self, timeout_s: float | None) -> list[bytes]:
        """Return the lines that have come since the last call.

        Args:
            timeout_s: how long to wait for the first one; None waits until there is one.

        Returns:
            Empty if none came in time, or none will come any more.
        """
        while self._selector.select(timeout_s):
            data = self._answers.read(1 << 16)
            *lines, self._unread = (self._unread + data).split(b"\n")
            if lines or not data:
                return lines
        return []

    def death(self) -> WorkerDied:
        """Wait for its end and describe it."""
        return WorkerDied(f"worker {self.pid} {self.ending()}", on_request=self._wait() == STOPPED)

    def ending(self) -> str:
        """Wait for its end and say with which signal or exit code it came."""
        return _describe(self._wait())

    def ask_to_stop(self, grace_s: float) -> bool:
        """Send SIGTERM and return whether it ended within `grace_s`."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def discard(self) -> None:
        """Kill it if it still runs, and reap it, so that its lock is free."""
        if not self.has_ended:
            self._process.kill()
        self._wait()
        self._selector.close()
        for stream in (self._requests, self._answers):
            with suppress(BrokenPipeError):  # a request that nobody will read
                stream.close()

    def _wait(self) -> int:
        return self._process.wait()


def _start(arguments: list[str], input_fd: int, output_fd: int) -> subprocess.Popen[bytes]:
    with block_signals():  # until it has handlers of its own, Ctrl-C is the parent's to answer
        return subprocess.Popen(
            [sys.executable, *arguments, str(output_fd), str(os.getpid())],
            stdin=input_fd,
            pass_fds=[output_fd],
            env=openmp.environment(),
        )


def _describe(code: int) -> str:
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
