"""A process that must not outlive the one that started it."""

import os
import signal
import threading

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
