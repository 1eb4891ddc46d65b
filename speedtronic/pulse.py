"""Signs of life: what this process is doing and how far it is, for whoever decides that it hangs.

`beat` is called where work makes progress, so that its text changes when it does and only then. It
costs an assignment. Where a call gives no chance to count, as a compilation does not, the work is
said to be `computing`: then processor time is its progress.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Sign:
    """What is being done, such as `skipping samples: 300 of 1200`, and whether it only computes."""

    doing: str
    computing: bool


_Beat = tuple[str, int | None, int | None, bool]

_latest: _Beat = ("starting", None, None, True)
_beside: _Beat | None = None  # of another thread, which saves


def beat(
    doing: str, done: int | None = None, total: int | None = None, *, computing: bool = False
) -> None:
    """Tell what this thread does from here on, and how much of it is done."""
    global _latest, _beside
    if threading.current_thread() is threading.main_thread():
        _latest = (doing, done, total, computing)
    else:
        _beside = (doing, done, total, computing)


def rest() -> None:
    """Tell that a thread beside the main one has nothing to do for now."""
    global _beside
    _beside = None


def latest() -> Sign:
    """What was told last."""
    main, beside = _latest, _beside
    if beside is None:
        return Sign(_text(main), main[3])
    return Sign(f"{_text(main)} (beside it {_text(beside)})", main[3] or beside[3])


def _text(told: _Beat) -> str:
    doing, done, total, _ = told
    if done is None:
        return doing
    return f"{doing}: {done}" if total is None else f"{doing}: {done} of {total}"
