"""Counts deaths after a load, to quarantine a checkpoint that kills whoever resumes from it.

After `limit` attempts in a row that loaded it and died before they committed anything, it is
quarantined and the one before it is tried, once. If that dies too, the cause is elsewhere, and
rejecting more would only discard more of the run. Deaths before the load finished do not count.
"""

from speedtronic.errors import WorkerFailed
from speedtronic.worker.messages import Rejection


class PoisonCounter:
    """Counts, for the checkpoint that a worker's attempts load, those that died after the load.

    Args:
        limit: deaths in a row after which it is rejected, >= 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._step: int | None = None  # what the current attempt has loaded
        self._suspect: int | None = None
        self._reasons: list[str] = []
        self._rejection: Rejection | None = None
        self._set_aside: int | None = None

    def loaded(self, step: int) -> None:
        """Record that the current attempt has loaded this checkpoint; 0 is a fresh start."""
        self._step = step or None
        if self._rejection is not None and self._rejection.step != step:
            self._set_aside, self._rejection = self._rejection.step, None

    def committed(self) -> None:
        """Record that the current attempt has committed something, so what it loaded is sound."""
        self._step = self._suspect = self._set_aside = None
        self._reasons = []

    def died(self, reason: str) -> None:
        """Record that the current attempt ended and has committed nothing since it loaded.

        Raises:
            WorkerFailed: the one checkpoint that was tried instead kills as well.
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

    def rejection(self) -> Rejection | None:
        """Return what the next attempt is to quarantine, until another checkpoint was loaded."""
        if len(self._reasons) >= self._limit:
            assert self._suspect is not None
            deaths = "; ".join(self._reasons)
            reason = f"{self._limit} attempts in a row died after loading it: {deaths}"
            self._rejection, self._reasons = Rejection(self._suspect, reason), []
        return self._rejection
