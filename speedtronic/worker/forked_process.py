"""Controls a process that the standby has forked, as subprocess.Popen would."""

import os
import select
import signal
import socket
import subprocess
from contextlib import suppress

UNKNOWN_CODE = 256  # no process ends with it


class ForkedProcess:
    """A child of the standby, with as much of the interface of `subprocess.Popen` as is needed.

    Args:
        pid: of the process.
        pidfd: of the process; closed once the end is known.
        report: where the standby reports the exit code.
    """

    def __init__(self, pid: int, pidfd: int, report: socket.socket) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._report = report
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._code if self._ends_within(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout or 0.0)
        assert self._code is not None
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended; never to another process with the same pid."""
        if self._code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ends_within(self, timeout_s: float | None) -> bool:
        if self._code is not None:
            return True
        if not _is_readable(self._pidfd, timeout_s):
            return False
        self._code = UNKNOWN_CODE
        with suppress(OSError, ValueError):  # the standby was killed: int(b"")
            self._code = int(self._report.recv(16))
        os.close(self._pidfd)
        self._report.close()
        return True


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))
