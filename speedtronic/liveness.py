"""Reports to the parent what this process is doing, and ends this process if the parent dies.

The parent takes a process for hung when its report does not change. `report_progress` is therefore
called exactly where work makes progress; it costs an assignment. Work that cannot count its
progress, such as a compilation, is reported as `computing`: then processor time counts instead.
"""

import os
import select
import signal
import threading
from dataclasses import dataclass

POLL_S = 0.2  # how often a process checks that its parent is alive


@dataclass(frozen=True)
class Activity:
    """What this process is doing.

    Attributes:
        doing: in words, such as `skipping samples: 300 of 1200`.
        computing: whether processor time counts as progress of it.
    """

    doing: str
    computing: bool


_Progress = tuple[str, int | None, int | None, bool]

_latest: _Progress = ("starting", None, None, True)
_beside: _Progress | None = None  # of the thread that saves in the background


def report_progress(
    doing: str, done: int | None = None, total: int | None = None, *, computing: bool = False
) -> None:
    """Report what this thread is doing from now on, and how much of it is done."""
    global _latest, _beside
    if threading.current_thread() is threading.main_thread():
        _latest = (doing, done, total, computing)
    else:
        _beside = (doing, done, total, computing)


def report_idle() -> None:
    """Report that the background thread has nothing to do for now."""
    global _beside
    _beside = None


def current_activity() -> Activity:
    """Return what was reported last, by the main thread and by the background thread."""
    main, beside = _latest, _beside
    if beside is None:
        return Activity(_text(main), main[3])
    return Activity(f"{_text(main)} (beside it {_text(beside)})", main[3] or beside[3])


def _text(progress: _Progress) -> str:
    doing, done, total, _ = progress
    if done is None:
        return doing
    return f"{doing}: {done}" if total is None else f"{doing}: {done} of {total}"


def end_with_parent(parent_pid: int) -> None:
    """Start a thread that kills this process (SIGKILL) within `POLL_S` of its parent's end.

    If the parent is gone already, the process ends at once. Nothing is flushed and no clean-up
    runs; whatever must survive a crash has been made durable before.

    Only a polling thread covers every case. PR_SET_PDEATHSIG fires when the spawning *thread* ends,
    not the process; torch's own loader workers check only every 5 s; a pipe that closes with its
    owner stays open in grandchildren that inherited it. The thread stops once the interpreter shuts
    down, which takes a second with torch, so code that finds out by itself that the parent is gone
    must call `end_as_orphan` instead of returning.

    Args:
        parent_pid: of the direct parent, taken there by `os.getpid()`. Calling `os.getppid()` here
            would miss a parent that ended before the call.
    """
    _end_if_orphan(parent_pid)
    threading.Thread(target=_watch, args=(parent_pid,), name="end-with-parent", daemon=True).start()


def _watch(parent_pid: int) -> None:
    never = threading.Event()
    while not never.wait(POLL_S):
        _end_if_orphan(parent_pid)


def end_with(pidfd: int) -> None:
    """Start a thread that kills this process (SIGKILL) when another one, not its parent, ends.

    Args:
        pidfd: of the other process, from `os.pidfd_open` there; a reused pid is not taken for it.
    """
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    if ended.poll(0):
        end_as_orphan()

    def wait() -> None:
        ended.poll()
        end_as_orphan()

    threading.Thread(target=wait, name="end-with", daemon=True).start()


def end_as_orphan() -> None:
    """Kill this process (SIGKILL) at once, as the thread of `end_with_parent` would."""
    os.kill(os.getpid(), signal.SIGKILL)


def _end_if_orphan(parent_pid: int) -> None:
    if os.getppid() != parent_pid:
        end_as_orphan()
