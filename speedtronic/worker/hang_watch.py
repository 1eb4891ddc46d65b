"""Whether a process that trains is alive, judged by its parent from what it tells and computes."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
CPU_SHARE = 0.05  # of the time, from which on a process that says it computes does so


class Watch:
    """Seconds since the last progress of a process.

    Progress is a new step, a save, a text of `alive` events that differs from the one before; and,
    while the last of these says that the process computes, processor time.

    Args:
        limit_s: when it is taken for hung; processor time is asked for after half of it.
        cpu_s: what the process and those below it have used; None where that is not known.
        now: a clock.

    Attributes:
        doing: what it told last that it does.
        step: the last step it told of.
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

    def take(self, event: dict[str, Any]) -> None:
        """Take note of an event of the process."""
        kind = event["event"]
        if kind == "alive":
            if event["doing"] != self.doing:
                self._progressed()
            self.doing, self._computing = event["doing"], event["computing"]
        elif kind in ("step", "restored"):
            if event["step"] != self.step:
                self._progressed()
            self.step = event["step"]
        elif kind == "saved":
            self._progressed()

    def is_hung(self) -> bool:
        """Whether there was no progress for longer than the limit."""
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
    """Processor time of a process and of all below it, in seconds; None where there is no /proc."""
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
