"""Which steps to delete. Pure: a list in, a list out."""

from collections.abc import Collection, Mapping


def steps_to_delete(
    steps: Collection[int], *, keep_last: int | None, protected: Collection[int] = ()
) -> list[int]:
    """The steps that retention no longer keeps, oldest first.

    Args:
        steps: committed steps of this run only.
        keep_last: how many of the highest to keep; None keeps all.
        protected: never deleted, and not counted against `keep_last` when lower than those kept.
    """
    if keep_last is None:
        return []
    kept = sorted(steps)[-keep_last:]
    return [step for step in sorted(steps) if step not in kept and step not in protected]


def best_steps(val_losses: Mapping[int, float], keep_best: int | None) -> list[int]:
    """The `keep_best` steps with the lowest validation loss, best first; of equals the later."""
    ranked = sorted(val_losses, key=lambda step: (val_losses[step], -step))
    return ranked[:keep_best] if keep_best is not None else []
