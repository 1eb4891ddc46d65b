"""Which states a disk can be in after a power loss, by its log. Pure.

What was written before the last flush that came to its end is there. Each sector written since is
there or not, whatever became of the others.
"""

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tests.powerloss.log import Interval, Write

FEW = 4  # so many writes in flight or fewer: every subset
NUM_RANDOM = 12  # of each kind, per interval, where there are more
Kept = tuple[tuple[int, tuple[int, ...] | None], ...]


@dataclass(frozen=True)
class CrashState:
    """A moment of the log, and what the disk had of what was in flight.

    Attributes:
        interval: all before it is durable.
        happened: how many of its writes had been made.
        kept: (number of a write in the interval, its sectors that the disk has; None means all).
        how: `dropped`, `subset` or `torn`.
    """

    interval: int
    happened: int
    kept: Kept
    how: str


def crash_states(
    intervals: Sequence[Interval],
    wanted: int,
    rng: random.Random,
    whole_at: Collection[int] = (),
) -> list[CrashState]:
    """Different states in the order of the log, spread over all intervals.

    Args:
        intervals: from flush to flush.
        wanted: how many states; fewer come where there are no more.
        rng: which.
        whole_at: offsets of writes that the disk never tears.
    """
    sources = [_of(number, interval, rng, whole_at) for number, interval in enumerate(intervals)]
    found: dict[tuple[int, Kept], CrashState] = {}
    while sources and len(found) < wanted:
        left = []
        rng.shuffle(sources)
        for source in sources:
            state = next(source, None)
            if state is not None and len(found) < wanted:
                found.setdefault((state.interval, state.kept), state)
                left.append(source)
        sources = left
    return sorted(found.values(), key=lambda state: (state.interval, state.happened))


def notes_by(intervals: Sequence[Interval], state: CrashState) -> list[str]:
    """What had been noted when the power went, oldest first."""
    before = [text for interval in intervals[: state.interval] for _, text in interval.notes]
    last = intervals[state.interval]
    ended = state.happened == len(last.writes)
    return before + [text for at, text in last.notes if ended or at <= state.happened]


def _of(
    number: int, interval: Interval, rng: random.Random, whole_at: Collection[int]
) -> Iterator[CrashState]:
    """Nothing of the interval is there, or some; all of it is the beginning of the next one."""
    count = len(interval.writes)
    some = list(_some(number, interval, rng, whole_at))
    rng.shuffle(some)
    nothing = CrashState(number, count, (), "dropped")
    yield from [nothing, *some] if number % 2 else [*some[:1], nothing, *some[1:]]


def _some(
    number: int, interval: Interval, rng: random.Random, whole_at: Collection[int]
) -> Iterator[CrashState]:
    count = len(interval.writes)
    if count <= FEW:
        for size in range(1, count):
            for chosen in itertools.combinations(range(count), size):
                yield CrashState(number, count, tuple((i, None) for i in chosen), "subset")
    for _ in range(NUM_RANDOM if count else 0):
        happened = rng.randint(1, count)
        likely = rng.choice([0.2, 0.5, 0.8, 1.0])
        chosen = tuple(i for i in range(happened) if rng.random() < likely)
        if chosen and count > FEW:
            yield CrashState(number, happened, tuple((i, None) for i in chosen), "subset")
        writes = interval.writes[:happened]
        can_tear = [
            i for i, w in enumerate(writes) if w.num_sectors > 1 and w.offset not in whole_at
        ]
        if torn := _torn(writes, can_tear, chosen, rng):
            yield CrashState(number, happened, torn, "torn")


def _torn(
    writes: Sequence[Write], can_tear: Sequence[int], chosen: Sequence[int], rng: random.Random
) -> Kept | None:
    """One write, or all that can be, is there by sectors only."""
    if not can_tear:
        return None
    torn = {rng.choice(can_tear)} if rng.random() < 0.5 else set(can_tear)
    kept: list[tuple[int, tuple[int, ...] | None]] = []
    for i in sorted({*chosen, *torn}):
        if i not in torn:
            kept.append((i, None))
            continue
        count = writes[i].num_sectors
        sectors = tuple(range(rng.randint(1, count - 1)))  # up to somewhere, or here and there
        if rng.random() < 0.5:
            sectors = tuple(n for n in range(count) if rng.random() < 0.5)
        if sectors:
            kept.append((i, sectors))
    return tuple(kept) or None
