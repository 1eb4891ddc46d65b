"""Starts training children in a moment, by forking a process that has torch imported.

There is at most one such standby in a process, shared by all its workers, since what it holds is
the same for all of them. It begins beside the first chunk and ends with the last worker. Where it
is not there, not ready, or was started in other surroundings, children start in the usual way.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from speedtronic.shutdown import block_signals
from speedtronic.worker import openmp
from speedtronic.worker.forked_process import ForkedProcess, _is_readable
from speedtronic.worker.standby_main import READY

IS_SAFE_TO_FORK = sys.platform == "linux"  # the system libraries of macOS do not survive a fork
ANSWER_S = 10.0  # for a fork, and for the report of an end: both take some milliseconds

# Variables that a library or the interpreter reads once, when it is loaded: a process that was
# started with others of these is not like one started now.
READ_WHEN_LOADED = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "TMPDIR", "PATH", "VIRTUAL_ENV"),
    *(
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "GOTO_",
        "BLIS_",
        "DNNL_",
        "ONEDNN_",
        "NUMEXPR_",
    ),
    *(
        "TORCH",
        "PYTORCH_",
        "ATEN_",
        "CUDA_",
        "NVIDIA_",
        "NCCL_",
        "GLOO_",
        "HIP_",
        "ROCR_",
        "TRITON",
    ),
    *("NPY_", "NUMPY_", "AWS_", "FSSPEC_", "SPEEDTRONIC_"),
)

logger = logging.getLogger(__name__)


class Standby:
    """A process that forks children which start at once; it lives until `close`."""

    def __init__(self) -> None:
        self._surroundings = _surroundings()
        self._is_ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, block_signals():
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "speedtronic.worker.standby_main"),
                    *(str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=openmp.environment(),
            )
        self._control.settimeout(ANSWER_S)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it was killed, or could not import."""
        return self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        """Whether it has imported all; then it can fork."""
        if not self._is_ready and _is_readable(self._control.fileno(), 0):
            self._is_ready = self._control.recv(len(READY)) == READY
        return self._is_ready

    def is_like_this_process(self) -> bool:
        """Whether its children are what this process would start now."""
        return self._surroundings == _surroundings()

    def fork(self, input_fd: int, events_fd: int) -> ForkedProcess:
        """Fork a training child; the caller closes its own copies of the file descriptors.

        Raises:
            OSError: it has ended, or does not answer.
        """
        report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        this_process = os.pidfd_open(os.getpid())
        request = json.dumps({"environment": openmp.environment()}).encode()
        try:
            with theirs:
                fds = [input_fd, 1, 2, events_fd, this_process, theirs.fileno()]
                socket.send_fds(self._control, [request], fds)
            report.settimeout(ANSWER_S)
            pid, fds, _, _ = socket.recv_fds(report, 16, 1, socket.MSG_CMSG_CLOEXEC)
            if not fds:
                raise ConnectionError("the standby process ended")
        except BaseException:
            report.close()
            raise
        finally:
            os.close(this_process)
        return ForkedProcess(int(pid), fds[0], report)

    def close(self) -> None:
        """End it; it is reaped on return. Its children live on, and report no exit code."""
        self._process.kill()
        self._process.wait()
        self._control.close()


class SharedStandby:
    """The one standby of this process, while somebody holds it; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_holders = 0
        self._standby: Standby | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the standby; None where there is none."""
        return self._standby.pid if self._standby else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the standby, once begun, until the end of the block."""
        with self._lock:
            self._num_holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_holders -= 1
                if self._num_holders == 0:
                    self._discard()

    def begin(self) -> None:
        """Start the standby if somebody holds it, and it is not there, dead or out of date."""
        with self._lock:
            if self._num_holders == 0 or not IS_SAFE_TO_FORK:
                return
            if self._standby is not None:
                if not self._standby.has_ended and self._standby.is_like_this_process():
                    return
                self._discard()
            try:
                self._standby = Standby()
            except OSError as error:  # too many processes or files: then without
                logger.warning("no standby for the next start of training: %s", error)

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether the standby can fork within so long."""
        give_up_at = time.monotonic() + timeout_s
        never = threading.Event()
        while time.monotonic() < give_up_at:
            with self._lock:
                if self._standby is not None and self._standby.is_ready:
                    return True
            never.wait(0.01)
        return False

    def fork(self, input_fd: int, events_fd: int) -> ForkedProcess | None:
        """Fork a training child; None where that cannot be done now and in these surroundings."""
        with self._lock:
            standby = self._standby
            if standby is None or standby.has_ended or not standby.is_like_this_process():
                return None
            try:
                return standby.fork(input_fd, events_fd) if standby.is_ready else None
            except (OSError, ValueError) as error:
                logger.debug("the standby does not answer: %s", error)
                self._discard()
                return None

    def _discard(self) -> None:
        if self._standby is not None:
            self._standby.close()
        self._standby = None


STANDBY = SharedStandby()


def _surroundings() -> tuple[object, ...]:
    """What a process inherits when it starts, and cannot be given later."""
    environment = openmp.environment().items()
    early = {name: value for name, value in environment if name.startswith(READ_WHEN_LOADED)}
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    return os.getpid(), str(Path.cwd()), early, affinity
