"""Real files behind the failpoints of the robustness suite, in the words of the store's tests."""

import errno
from pathlib import Path

from speedtronic.storage.local import LocalStorage
from tests.robustness.failpoints import KILLED_AFTER, KILLED_BEFORE, Failpoints
from tests.robustness.failpoints import Killed as Crash

__all__ = ["Crash", "FaultyStorage"]


class FaultyStorage(Failpoints):
    """`Failpoints` over a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStorage(root))

    def die_at(self, number: int, *, after: bool) -> None:
        """Die before or after the effect of operation `number` from here on; what follows dies."""
        self.arm(number, KILLED_AFTER if after else KILLED_BEFORE)

    def fail(self, verb: str) -> None:
        """Refuse every operation called `verb`, a write for want of space; "" mends it."""
        self.refuse(verb, code=errno.ENOSPC if verb == "write" else errno.EIO)
