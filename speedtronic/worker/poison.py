"""Poison: a checkpoint that is whole, and kills whoever goes on from it.

After `limit` attempts in a row that loaded it and died before they committed anything, it is set
aside and the one before it is tried, once. If that dies too, the cause is elsewhere, and trying
further would only throw more of the run away. Deaths before the load has finished say nothing.
"""

from typing import Any

from speedtronic.errors import WorkerFailed


class Suspicion:
    """What a worker's attempts have shown of the checkpoint that they start from.

    Args:
        limit: deaths in a row that condemn it, >= 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._step: int | None = None  # what the attempt at hand has loaded
        self._suspect: int | None = None
        self._reasons: list[str] = []
        self._verdict: dict[str, Any] | None = None
        self._set_aside: int | None = None

    def loaded(self, step: int) -> None:
        """The attempt at hand has loaded the checkpoint of `step`; 0 is a fresh start."""
        self._step = step or None
        if self._verdict is not None and self._verdict["step"] != step:
            self._set_aside, self._verdict = self._verdict["step"], None

    def committed(self) -> None:
        """The attempt at hand has committed something, so what it loaded is sound."""
        self._step = self._suspect = self._set_aside = None
        self._reasons = []

    def died(self, reason: str) -> None:
        """The attempt at hand is over, and has committed nothing since it loaded.

        Raises:
            WorkerFailed: it had been given the last checkpoint that was to be tried.
        """
        step, self._step = self._step, None
        if step is None:
            return
        if self._set_aside is not None:
            raise WorkerFailed(
                f"going on from step {step} died as well ({reason}), as from step "
                f"{self._set_aside}, which is now in quarantine/ for it; the cause is hardly in "
                "the checkpoints: mend it, then move the files back or train from here",
                kind="PoisonError",
                retryable=False,
            )
        if step != self._suspect:
            self._suspect, self._reasons = step, []
        self._reasons.append(reason)

    def verdict(self) -> dict[str, Any] | None:
        """The step that the next attempt is to set aside, and why, until another was loaded."""
        if len(self._reasons) >= self._limit:
            deaths = "; ".join(self._reasons)
            reason = f"{self._limit} attempts in a row died after loading it: {deaths}"
            self._verdict, self._reasons = {"step": self._suspect, "reason": reason}, []
        return self._verdict
