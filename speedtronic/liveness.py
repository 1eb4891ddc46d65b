"""Signs of life: what this process is doing and how far it is, for the parent that detects hangs.

`report_progress` is called where work makes progress, so that its text changes then and only then.
It costs an assignment. Where a call gives no chance to count, as a compilation does not, the work
is reported as `computing`: then processor time counts as its progress.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """What is being done, such as `skipping samples: 300 of 1200`, and whether it only computes."""

    doing: str
    computing: bool


_Progress = tuple[str, int | None, int | None, bool]

_latest: _Progress = ("starting", None, None, True)
_beside: _Progress | None = None  # of another thread, which saves


def report_progress(
    doing: str, done: int | None = None, total: int | None = None, *, computing: bool = False
) -> None:
    """Report what this thread does from here on, and how much of it is done."""
    global _latest, _beside
    if threading.current_thread() is threading.main_thread():
        _latest = (doing, done, total, computing)
    else:
        _beside = (doing, done, total, computing)


def report_idle() -> None:
    """Report that the thread beside the main one has nothing to do for now."""
    global _beside
    _beside = None


def latest_sign() -> Sign:
    """Return what was reported last, by the main thread and by the one beside it."""
    main, beside = _latest, _beside
    if beside is None:
        return Sign(_text(main), main[3])
    return Sign(f"{_text(main)} (beside it {_text(beside)})", main[3] or beside[3])


def _text(progress: _Progress) -> str:
    doing, done, total, _ = progress
    if done is None:
        return doing
    return f"{doing}: {done}" if total is None else f"{doing}: {done} of {total}"
