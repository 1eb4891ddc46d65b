"""The standby process: it has torch and this package imported, and forks training children.

    python -m speedtronic.worker.standby_main CONTROL_FD PARENT_PID

CONTROL_FD is a Unix socket that keeps the boundaries of messages. The parent sends one JSON object
for each child, `{"environment": {...}}`, and six file descriptors with it: the child's standard
input, output and error, where its events go, a pidfd of the parent, and a socket on which this
process reports the child: first its pid with a pidfd of it, and once it is reaped its exit code,
negative for a signal, as `subprocess` has it.

No thread runs here, none of the user's code is imported, and no device is touched, so that a fork
is safe: https://pubs.opengroup.org/onlinepubs/9799919799/functions/fork.html.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from functools import partial

from speedtronic.liveness import POLL_S, end_as_orphan, end_with

READY = b"ready"
NUM_FDS = 6
MAX_REQUEST_BYTES = 1 << 20

# The second is what torch imports when the first optimizer is made.
PRELOADED = ("speedtronic.worker.chunk_main", "torch._dynamo")


def main() -> None:
    """Fork children until the parent is gone; in a forked child, train."""
    control, parent_pid = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    control.set_inheritable(False)
    _import_all(parent_pid)
    control.send(READY)
    events_fd, parent_pidfd = _fork_children(control, parent_pid)
    chunk_main = importlib.import_module("speedtronic.worker.chunk_main")
    sys.argv = [str(chunk_main.__file__)]
    chunk_main.serve(events_fd, partial(end_with, parent_pidfd))


def _import_all(parent_pid: int) -> None:
    """Import what children need, and end at once if the parent does; a timer leaves no thread."""
    signal.signal(signal.SIGALRM, lambda *_: _end_if_orphan(parent_pid))
    signal.setitimer(signal.ITIMER_REAL, POLL_S, POLL_S)
    for name in PRELOADED:
        importlib.import_module(name)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.collect()
    gc.freeze()  # children share this memory as long as nobody writes to it


def _fork_children(control: socket.socket, parent_pid: int) -> tuple[int, int]:
    """Fork a child for each request and report how each one ends.

    Returns:
        In a child only: where its events go, and a pidfd of the process that it is to end with.
    """
    children: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: pid, where to report
    readable = select.poll()
    readable.register(control, select.POLLIN)
    while True:
        for fd, _ in readable.poll(POLL_S * 1000):
            if fd in children:
                readable.unregister(fd)
                _report_end(fd, *children.pop(fd))
                continue
            request, fds, _, _ = socket.recv_fds(
                control, MAX_REQUEST_BYTES, NUM_FDS, socket.MSG_CMSG_CLOEXEC
            )
            if len(fds) != NUM_FDS:
                end_as_orphan()  # the end of the messages
            *for_child, report_fd = fds
            report = socket.socket(fileno=report_fd)
            pid = os.fork()
            if pid == 0:
                others = [control, report, *(other for _, other in children.values())]
                return _become_child(request, for_child, others, list(children))
            for child_fd in for_child:
                os.close(child_fd)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, report)
            readable.register(pidfd, select.POLLIN)
            _report(report, str(pid).encode(), [pidfd])
        _end_if_orphan(parent_pid)


def _become_child(
    request: bytes, fds: list[int], sockets: list[socket.socket], pidfds: list[int]
) -> tuple[int, int]:
    """Take on the streams and the environment of a process that the parent itself had started."""
    for one in sockets:
        one.close()
    for pidfd in pidfds:
        os.close(pidfd)
    *standard, events_fd, parent_pidfd = fds
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(json.loads(request)["environment"])
    return events_fd, parent_pidfd


def _report_end(pidfd: int, pid: int, report: socket.socket) -> None:
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _report(report, str(code).encode(), [])
    report.close()


def _report(report: socket.socket, message: bytes, fds: list[int]) -> None:
    with suppress(
        OSError
    ):  # the parent does not care any more, or is gone, which is seen elsewhere
        socket.send_fds(report, [message], fds)


def _end_if_orphan(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        end_as_orphan()


if __name__ == "__main__":
    main()
