"""Which steps to delete. Pure: a list in, a list out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """What a run keeps. All of it adds up.

    Attributes:
        keep_last: how many of the newest, >= 1; None keeps all.
        keep_best: how many of those with the lowest validation loss; of equals the later.
        keep_every: the milestones, those of a step that this divides.
    """

    keep_last: int | None = None
    keep_best: int | None = None
    keep_every: int | None = None

    def steps_to_delete(
        self,
        steps: Collection[int],
        *,
        val_losses: Mapping[int, float],
        protected: Collection[int],
    ) -> list[int]:
        """The steps that are no longer kept, oldest first.

        Args:
            steps: committed steps of this run only.
            val_losses: of those that have one.
            protected: never deleted, and not counted against `keep_last` when lower than those
                kept.
        """
        if self.keep_last is None:
            return []
        kept = {*sorted(steps)[-self.keep_last :], *protected, *self._best(val_losses)}
        if self.keep_every is not None:
            kept.update(step for step in steps if step % self.keep_every == 0)
        return [step for step in sorted(steps) if step not in kept]

    def _best(self, val_losses: Mapping[int, float]) -> list[int]:
        ranked = sorted(val_losses, key=lambda step: (val_losses[step], -step))
        return ranked[: self.keep_best or 0]
