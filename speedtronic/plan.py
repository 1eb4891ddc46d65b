"""Splits a run into chunks. Pure: numbers in, chunks out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """The steps that one task trains: from `start` (completed) to `target`, both absolute."""

    start: int
    target: int

    @property
    def name(self) -> str:
        """Label of the chunk, such as `steps 100-200`."""
        return f"steps {self.start}-{self.target}"


def plan_chunks(*, start: int, target: int, chunk_steps: int) -> list[Chunk]:
    """Return the chunks from `start` to `target`; none if the target is reached.

    Boundaries are multiples of `chunk_steps`, itself a multiple of the saving interval. Only the
    first chunk may begin, and only the last one may end, elsewhere.
    """
    chunks = []
    while start < target:
        boundary = min((start // chunk_steps + 1) * chunk_steps, target)
        chunks.append(Chunk(start, boundary))
        start = boundary
    return chunks


def unsaved_steps(*, start: int, target: int, every_steps: int, save_on_stop: bool) -> range:
    """Return the range of steps that a run to `target` trains but does not save."""
    last_saved = max(start, target // every_steps * every_steps)
    return range(target, target) if save_on_stop else range(last_saved + 1, target + 1)


def first_saves(*, every_steps: int, save_on_stop: bool) -> range:
    """Return the range of steps at which a run from step 0 may save for the first time."""
    return range(1 if save_on_stop else every_steps, every_steps + 1)
