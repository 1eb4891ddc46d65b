"""Detects in the parent that a training process hangs, from its events and its processor time."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from speedtronic.worker.messages import Alive, Event, Restored, Saved, StepReached

TICKS = os.sysconf("SC_CLK_TCK")
CPU_SHARE = 0.05  # of the elapsed time; a process that uses less does not compute


class HangWatch:
    """Measures how long a process has made no progress.

    Progress is a new step, a save, or an `Alive` event whose text differs from the one before;
    while the last `Alive` says that the process computes, using processor time counts too.

    Args:
        limit_s: time without progress after which the process counts as hung; processor time is
            looked at after half of it.
        cpu_s: returns what the process and its descendants have used; None where not known.
        now: a clock.

    Attributes:
        doing: what the process last reported to be doing.
        step: the last step it reported.
    """

    def __init__(
        self,
        limit_s: float,
        cpu_s: Callable[[], float | None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.doing = "starting"
        self.step: int | None = None
        self._limit_s = limit_s
        self._cpu_s = cpu_s
        self._now = now
        self._computing = True
        self._progressed()

    def on_event(self, event: Event) -> None:
        """Take an event of the process into account."""
        match event:
            case Alive():
                if event.doing != self.doing:
                    self._progressed()
                self.doing, self._computing = event.doing, event.computing
            case StepReached() | Restored():
                if event.step != self.step:
                    self._progressed()
                self.step = event.step
            case Saved():
                self._progressed()

    def is_hung(self) -> bool:
        """Return whether there was no progress for longer than the limit."""
        silent_s = self._now() - self._since
        if self._computing and silent_s > self._limit_s / 2:
            used_s, before_s = self._cpu_s(), self._cpu_before_s
            if used_s is not None and used_s - (before_s or 0.0) > CPU_SHARE * silent_s:
                self._progressed()
                return False
        return silent_s > self._limit_s

    def _progressed(self) -> None:
        self._since = self._now()
        self._cpu_before_s = self._cpu_s() if self._computing else None


def cpu_s(pid: int) -> float | None:
    """Return the seconds of processor time of a process and its descendants; None without /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return None
    own = sum(map(int, fields[11:15])) / TICKS  # user, system, and those of children that ended
    return own + sum(cpu_s(child) or 0.0 for child in below)
