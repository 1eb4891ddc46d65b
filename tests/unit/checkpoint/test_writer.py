"""Commits in the background: in order, one at a time, and no failure is lost."""

import threading
from typing import Any

import pytest
import torch

from speedtronic.checkpoint.records import Pointer
from speedtronic.checkpoint.writer import CheckpointWriter
from speedtronic.errors import StorageError
from tests.waiting import wait_until

BOTH = pytest.mark.parametrize("background", [True, False], ids=["background", "at once"])


def pointer(step: int) -> Pointer:
    return Pointer(
        step=step,
        file=f"step_{step:012d}.pt",
        digest="xxh3_128:" + "0" * 32,
        state_digest="state1:" + "0" * 32,
        run_id="a",
        samples=0,
        tokens=0,
    )


class Disk:
    """Keeps what is committed; holds each commit until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.failing: Exception | None = None
        self.seen: list[tuple[int, float]] = []
        self.threads: set[int] = set()
        self.at_work = 0

    def commit(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        self.at_work += 1
        assert self.at_work == 1
        assert self.go.wait(30)
        self.threads.add(threading.get_ident())
        self.at_work -= 1
        if self.failing:
            raise self.failing
        self.seen.append((state["step"], float(state["x"][0])))
        return pointer(state["step"]), 100 + state["step"]


def state_at(step: int) -> dict[str, Any]:
    return {"step": step, "x": torch.full((1000,), float(step))}


@BOTH
def test_every_state_is_committed_as_it_was_when_given(background: bool) -> None:
    disk = Disk()
    writer = CheckpointWriter(disk.commit, background=background)
    state = state_at(0)
    for step in range(1, 6):
        state["step"] = step
        state["x"].fill_(step)
        writer.save(state)
        state["x"].fill_(-1)
    told = writer.wait()
    writer.close()
    assert disk.seen == [(step, float(step)) for step in range(1, 6)]
    assert [saved.pointer.step for saved in told] == [1, 2, 3, 4, 5]
    assert [saved.size_bytes for saved in told] == [101, 102, 103, 104, 105]
    assert all(saved.stall_s > 0 for saved in told)
    assert all(saved.durable_s > 0 for saved in told)
    assert (threading.get_ident() in disk.threads) is not background


def test_the_caller_goes_on_while_a_save_is_written_and_waits_before_the_next() -> None:
    disk = Disk()
    disk.go.clear()
    writer = CheckpointWriter(disk.commit, background=True)
    writer.save(state_at(1))
    assert writer.finished() == []
    second = threading.Thread(target=writer.save, args=(state_at(2),))
    second.start()
    assert disk.seen == []
    disk.go.set()
    second.join(30)
    first, later = writer.wait()
    assert (first.pointer.step, later.pointer.step) == (1, 2)
    assert first.durable_s > first.stall_s
    writer.close()


def test_the_wait_for_the_save_before_counts_as_a_stall() -> None:
    disk = Disk()
    disk.go.clear()
    writer = CheckpointWriter(disk.commit, background=True)
    writer.save(state_at(1))
    timer = threading.Timer(0.2, disk.go.set)
    timer.start()
    writer.save(state_at(2))
    assert writer.wait()[1].stall_s > 0.1
    writer.close()


@BOTH
@pytest.mark.parametrize("at", ["save", "finished", "wait"])
def test_a_failure_is_raised_once_and_the_next_save_works(background: bool, at: str) -> None:
    disk = Disk()
    writer = CheckpointWriter(disk.commit, background=background)
    disk.failing = StorageError("cannot write")
    if background:
        writer.save(state_at(1))
        in_flight = writer._in_flight
        assert in_flight is not None
        assert wait_until(in_flight.done, timeout_s=30)
        with pytest.raises(StorageError, match="cannot write"):
            writer.save(state_at(2)) if at == "save" else getattr(writer, at)()
    else:
        with pytest.raises(StorageError, match="cannot write"):
            writer.save(state_at(1))
    disk.failing = None
    writer.save(state_at(3))
    assert [saved.pointer.step for saved in writer.wait()] == [3]
    assert [step for step, _ in disk.seen] == [3]
    writer.close()


def test_closing_lets_the_save_in_flight_end() -> None:
    disk = Disk()
    disk.go.clear()
    writer = CheckpointWriter(disk.commit, background=True)
    writer.save(state_at(1))
    threading.Timer(0.1, disk.go.set).start()
    writer.close()
    assert disk.seen == [(1, 1.0)]
