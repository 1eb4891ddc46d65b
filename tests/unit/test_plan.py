"""Chunks: exact multiples, no gap, no overlap."""

import pytest

from speedtronic.plan import Chunk, plan_chunks, unsaved_steps


@pytest.mark.parametrize(
    ("start", "target", "chunk_steps", "planned"),
    [
        (0, 10, 4, [(0, 4), (4, 8), (8, 10)]),
        (0, 8, 4, [(0, 4), (4, 8)]),
        (0, 3, 4, [(0, 3)]),
        (6, 13, 4, [(6, 8), (8, 12), (12, 13)]),  # back on a multiple at once
        (4, 10, 100, [(4, 10)]),
        (10, 10, 4, []),
        (12, 10, 4, []),
    ],
)
def test_chunks(start: int, target: int, chunk_steps: int, planned: list[tuple[int, int]]) -> None:
    chunks = plan_chunks(start=start, target=target, chunk_steps=chunk_steps)
    assert chunks == [Chunk(*pair) for pair in planned]


def test_chunks_cover_every_step_once() -> None:
    for start in range(12):
        for target in range(start, 30):
            for chunk_steps in range(1, 9):
                chunks = plan_chunks(start=start, target=target, chunk_steps=chunk_steps)
                steps = [step for c in chunks for step in range(c.start, c.target)]
                assert steps == list(range(start, target))
                assert all(c.target % chunk_steps == 0 for c in chunks[:-1])


def test_a_chunk_is_named_by_its_steps() -> None:
    assert Chunk(100, 200).name == "steps 100-200"


@pytest.mark.parametrize(
    ("start", "target", "save_on_stop", "unsaved"),
    [
        (0, 3, False, [3]),
        (0, 4, False, []),
        (0, 5, False, [5]),
        (0, 5, True, []),
        (4, 4, False, []),
        (5, 5, False, []),  # what was there is there
        (12, 10, False, []),
        (0, 1, False, [1]),
    ],
)
def test_the_steps_that_will_be_on_no_disk(
    start: int, target: int, save_on_stop: bool, unsaved: list[int]
) -> None:
    steps = unsaved_steps(start=start, target=target, every_steps=2, save_on_stop=save_on_stop)
    assert list(steps) == unsaved
