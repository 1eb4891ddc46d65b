"""How a run is split into chunks. Pure: numbers in, chunks out."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """The steps between two hand-overs: from `start` (completed) to `target`, both absolute."""

    start: int
    target: int

    @property
    def name(self) -> str:
        """`steps 100-200`."""
        return f"steps {self.start}-{self.target}"


def plan_chunks(*, start: int, target: int, chunk_steps: int) -> list[Chunk]:
    """The chunks from `start` to `target`; none if the target is reached.

    Boundaries are multiples of `chunk_steps`, itself a multiple of the interval of saving; only
    the first chunk may begin elsewhere and only the last one may end elsewhere.
    """
    chunks = []
    while start < target:
        boundary = min((start // chunk_steps + 1) * chunk_steps, target)
        chunks.append(Chunk(start, boundary))
        start = boundary
    return chunks


def unsaved_steps(*, start: int, target: int, every_steps: int, save_on_stop: bool) -> range:
    """The steps that a run to `target` trains and leaves on no disk, as first..last + 1."""
    last_saved = max(start, target // every_steps * every_steps)
    return range(target, target) if save_on_stop else range(last_saved + 1, target + 1)


def first_saves(*, every_steps: int, save_on_stop: bool) -> range:
    """The steps at which the very first save of a run that begins at step 0 can be."""
    return range(1 if save_on_stop else every_steps, every_steps + 1)
