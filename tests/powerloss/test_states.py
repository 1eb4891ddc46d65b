"""What a power loss may leave of a log: which states there are, and their images. No real disk."""

import random
from pathlib import Path

import pytest

from tests.powerloss.images import Images, copy_sparse
from tests.powerloss.log import FLUSH, NOTE, SECTOR_BYTES, WRITE, Interval, Log, Write, pack
from tests.powerloss.states import CrashState, crash_states, notes_by


def log_of(path: Path, *entries: tuple[bytes, int, bytes]) -> Log:
    """A log with these (kind, offset, bytes)."""
    path.write_bytes(b"".join(pack(kind, at, len(x), 0.0) + x for kind, at, x in entries))
    return Log(path)


def block(value: int, sectors: int = 1) -> bytes:
    return bytes([value]) * SECTOR_BYTES * sectors


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Two writes, a flush, a promise; one write of four sectors, a flush, a promise."""
    return log_of(
        tmp_path / "log",
        (WRITE, 0, block(1)),
        (WRITE, SECTOR_BYTES, block(2)),
        (FLUSH, 0, b""),
        (NOTE, 0, b"first"),
        (WRITE, 0, block(3, sectors=4)),
        (FLUSH, 0, b""),
        (NOTE, 0, b"second"),
    )


def states(
    intervals: list[Interval], wanted: int = 1000, **options: tuple[int, ...]
) -> list[CrashState]:
    return crash_states(intervals, wanted, random.Random(0), **options)


def test_a_log_is_cut_at_its_flushes(log: Log) -> None:
    intervals = log.intervals()
    assert [len(interval.writes) for interval in intervals] == [2, 1, 0]
    assert [interval.notes for interval in intervals] == [[], [(0, "first")], [(0, "second")]]


def test_what_was_flushed_is_there_and_what_was_not_may_be(log: Log, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(block(0, sectors=4))
    images = Images(base, log, tmp_path)
    seen = {images.crashed(state).read_bytes() for state in states(log.intervals())}
    before, flushed = block(0, sectors=4), block(1) + block(2) + block(0, sectors=2)
    assert {before, flushed, block(3, sectors=4)} <= seen
    assert {block(1) + block(0, sectors=3), block(0) + block(2) + block(0, sectors=2)} <= seen
    for image in seen:
        sectors = [image[at] for at in range(0, len(image), SECTOR_BYTES)]
        old = [(0, 1), (0, 2), (0,), (0,)] if 3 not in sectors else [(1, 3), (2, 3), (0, 3), (0, 3)]
        assert all(value in allowed for value, allowed in zip(sectors, old, strict=True))
    torn = [image for image in seen if 3 in image and image != block(3, sectors=4)]
    assert len(torn) > 3


def test_the_durable_image_is_never_what_a_mount_has_changed(log: Log, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.write_bytes(block(0, sectors=4))
    images = Images(base, log, tmp_path)
    state = CrashState(interval=1, happened=1, kept=(), how="dropped")
    images.crashed(state).write_bytes(block(9, sectors=4))
    assert images.crashed(state).read_bytes() == block(1) + block(2) + block(0, sectors=2)
    assert base.read_bytes() == block(0, sectors=4)


def test_promises_count_from_when_they_were_made(log: Log) -> None:
    intervals = log.intervals()
    lost = [state for state in states(intervals) if state.kept == ()]
    assert [notes_by(intervals, state) for state in lost] == [[], ["first"], ["first", "second"]]


def test_a_promise_made_among_writes_counts_after_those_before_it() -> None:
    interval = Interval([Write(0, 512), Write(512, 512)], [(1, "said")])
    said = {
        happened: notes_by([interval], CrashState(0, happened, (), "dropped"))
        for happened in (0, 1, 2)
    }
    assert said == {0: [], 1: ["said"], 2: ["said"]}


def test_every_subset_of_few_writes_is_tried() -> None:
    interval = Interval([Write(at * SECTOR_BYTES, SECTOR_BYTES) for at in range(4)])
    found = {state.kept for state in states([interval, Interval()])}
    subsets = {tuple(i for i, _ in kept) for kept in found}
    assert len(subsets) == 2**4 - 1  # all four are the next interval's beginning
    assert {state.interval for state in states([interval, Interval()])} == {0, 1}


def test_states_differ_and_are_spread_over_the_log() -> None:
    intervals = [Interval([Write(0, 8 * SECTOR_BYTES)] * 9) for _ in range(50)]
    found = states(intervals, wanted=200)
    assert len({(state.interval, state.kept) for state in found}) == len(found) == 200
    assert {state.interval for state in found} == set(range(50))
    assert {state.how for state in found} == {"dropped", "subset", "torn"}
    assert [state.interval for state in found] == sorted(state.interval for state in found)
    assert all(i < state.happened for state in found for i, _ in state.kept)


def test_what_the_disk_writes_whole_is_not_torn() -> None:
    interval = Interval([Write(4096, 8 * SECTOR_BYTES), Write(0, 8 * SECTOR_BYTES)])
    kept = [kept for state in states([interval], whole_at=(4096,)) for kept in state.kept]
    assert {sectors for number, sectors in kept if number == 0} == {None}
    assert len({sectors for number, sectors in kept if number == 1}) > 3


def test_holes_of_an_image_stay_holes(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with old.open("wb") as file:
        file.truncate(2**24)
        file.seek(2**20)
        file.write(b"data")
    copy_sparse(old, new)
    assert new.read_bytes() == old.read_bytes()
    assert new.stat().st_blocks <= old.stat().st_blocks < 2**20 / 512
