import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.data import SampleLoader, SampleOrder, TextSource
from speedtronic.data.loader import _Positions
from speedtronic.data.types import Batch, as_sample, stack
from speedtronic.errors import DataError, RestoreError
from speedtronic.shutdown import ALL_SIGNALS
from tests.waiting import Processes, wait_until

NUM_SAMPLES = 22
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


class Numbers:
    """Sample i is made of the number i alone; `broken` names one that cannot be read, and with
    `hang` none ever comes."""

    def __init__(
        self, broken: int = -1, error: type[Exception] = DataError, *, hang: bool = False
    ) -> None:
        self.broken = broken
        self.error = error
        self.hang = hang

    def __len__(self) -> int:
        return NUM_SAMPLES

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        if self.hang:
            threading.Event().wait()
        if self.broken in indices:
            raise self.error(f"text cannot be read: sample {self.broken}")
        assert len(epochs) == len(indices)
        return stack([as_sample(np.full(4, index)) for index in indices])

    def fingerprint(self) -> str:
        return "of numbers"


Make = Callable[..., SampleLoader]


@pytest.fixture
def make_loader() -> Iterator[Make]:
    made = []

    def make(source: Any = None, *, micro_batch_size: int = 4, **changes: Any) -> SampleLoader:
        fields = {"seed": 0, "shuffle": True, "drop_last": False, "target_batch_size": 8}
        order_changes = {key: changes.pop(key) for key in list(changes) if key in fields}
        num_samples = changes.pop("num_samples", NUM_SAMPLES)
        order = SampleOrder(num_samples, **{**fields, **order_changes})
        loader = SampleLoader(
            source or Numbers(), order, micro_batch_size=micro_batch_size, **changes
        )
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.close()
    assert multiprocessing.active_children() == []


def take(loader: SampleLoader, num_samples: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < num_samples:
        taken += loader.next_batch()["input_ids"][:, 0].tolist()
    assert len(taken) == num_samples
    return taken


def expected(order: SampleOrder, start: int, stop: int) -> list[int]:
    return order.locate(np.arange(start, stop))[1].tolist()


@WORKERS
def test_batches_follow_the_order_across_epochs(make_loader: Make, num_workers: int) -> None:
    loader = make_loader(num_workers=num_workers)
    batch = loader.next_batch()
    assert set(batch) == {"input_ids", "labels"}
    assert all(t.shape == (4, 3) and t.dtype == torch.int64 for t in batch.values())
    assert loader.position == 4
    taken = batch["input_ids"][:, 0].tolist() + take(loader, 96)
    assert taken == expected(loader._order, 0, 100)  # four and a half epochs of 22
    assert loader.state_dict() == {
        "samples": 100,
        "num_samples": 22,
        "epoch_samples": 22,
        "epoch": 4,
        "seed": 0,
        "shuffle": True,
    }


def test_state_is_plain_numbers(make_loader: Make) -> None:
    state = make_loader(drop_last=True).state_dict()
    assert state["epoch_samples"] == 16
    assert json.loads(json.dumps(state)) == state
    assert {type(value) for value in state.values()} == {int, bool}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("done", [4, 12, 20, 24, 44, 60])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2)])
def test_resumes_anywhere_with_other_workers_and_half_the_micro_batch(
    make_loader: Make, done: int, before: int, after: int, drop_last: bool
) -> None:
    first = make_loader(
        num_workers=before, prefetch_factor=3 if before else None, drop_last=drop_last
    )
    head = take(first, done)
    state = json.loads(json.dumps(first.state_dict()))
    assert state["samples"] == done  # whatever was prefetched
    second = make_loader(num_workers=after, micro_batch_size=2, drop_last=drop_last)
    second.load_state_dict(state)
    assert second.position == done
    assert head + take(second, 40) == expected(first._order, 0, done + 40)


@WORKERS
def test_jumps_back_and_forth(make_loader: Make, num_workers: int) -> None:
    loader = make_loader(num_workers=num_workers)
    start = loader.state_dict()
    first = take(loader, 12)
    later = loader.state_dict()
    beyond = take(loader, 8)
    loader.load_state_dict(start)
    assert take(loader, 12) == first
    loader.load_state_dict({**start, "samples": 0})
    loader.load_state_dict(later)
    assert take(loader, 8) == beyond


def test_a_position_far_away_is_reached_at_once(make_loader: Make) -> None:
    loader = make_loader()
    loader.load_state_dict({**loader.state_dict(), "samples": 4 * 10**15})
    assert take(loader, 8) == expected(loader._order, 4 * 10**15, 4 * 10**15 + 8)


def test_loading_where_it_stands_keeps_the_workers(make_loader: Make) -> None:
    loader = make_loader(num_workers=1)
    take(loader, 8)
    workers = multiprocessing.active_children()
    loader.load_state_dict(loader.state_dict())
    assert take(loader, 4) == expected(loader._order, 8, 12)
    assert multiprocessing.active_children() == workers
    loader.load_state_dict({**loader.state_dict(), "samples": 4})
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 21}, r"num_samples: saved 22, now 21; epoch_samples: saved 22, now 21"),
        ({"drop_last": True}, r"checkpoint's: epoch_samples: saved 22, now 16"),
        ({"seed": 1}, r"checkpoint's: seed: saved 0, now 1"),
        ({"shuffle": False}, r"checkpoint's: shuffle: saved True, now False"),
    ],
)
def test_another_order_is_refused(
    make_loader: Make, changes: dict[str, int | bool], message: str
) -> None:
    saved = make_loader()
    take(saved, 8)
    other = make_loader(**changes)
    with pytest.raises(RestoreError, match=message):
        other.load_state_dict(saved.state_dict())
    assert other.position == 0


def test_another_order_is_taken_where_it_was_changed_on_purpose(make_loader: Make) -> None:
    saved = make_loader()
    take(saved, 24)
    other = make_loader(seed=1, num_samples=10)
    other.load_state_dict(saved.state_dict(), any_order=True)
    assert other.state_dict()["epoch"] == 2
    assert take(other, 8) == expected(other._order, 24, 32)
    assert other.fingerprint() == "of numbers"


@WORKERS
def test_global_random_streams_are_left_alone(make_loader: Make, num_workers: int) -> None:
    before = (torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate())
    loader = make_loader(num_workers=num_workers)
    take(loader, 8)
    loader.load_state_dict({**loader.state_dict(), "samples": 40})
    take(loader, 8)
    loader.close()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


@WORKERS
def test_a_data_error_arrives_as_it_was_raised(make_loader: Make, num_workers: int) -> None:
    source = Numbers(broken=9)
    loader = make_loader(source, num_workers=num_workers, shuffle=False)
    assert take(loader, 8) == list(range(8))
    for _ in range(2):
        with pytest.raises(DataError) as caught:
            loader.next_batch()
        assert str(caught.value) == "text cannot be read: sample 9"
        assert loader.position == 8
        assert multiprocessing.active_children() == []
    source.broken = -1  # put right: nothing was lost
    assert take(loader, 8) == list(range(8, 16))


@WORKERS
def test_another_error_keeps_its_type(make_loader: Make, num_workers: int) -> None:
    loader = make_loader(Numbers(broken=1, error=ZeroDivisionError), num_workers=num_workers)
    with pytest.raises(ZeroDivisionError, match="sample 1"):
        take(loader, 24)
    assert loader.position % 4 == 0


def test_close_ends_the_workers_and_can_be_undone(make_loader: Make) -> None:
    loader = make_loader(num_workers=2)
    loader.close()
    first = take(loader, 4)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert multiprocessing.active_children() == []
    loader.close()
    assert first + take(loader, 4) == expected(loader._order, 0, 8)


@pytest.mark.parametrize("number", ALL_SIGNALS)
def test_workers_leave_signals_to_the_trainer(make_loader: Make, number: signal.Signals) -> None:
    loader = make_loader(num_workers=2)
    take(loader, 4)
    workers = set(multiprocessing.active_children())
    for worker in workers:
        os.kill(worker.pid or 0, number)  # one of them has hardly started
    assert take(loader, 36) == expected(loader._order, 4, 40)
    assert set(multiprocessing.active_children()) == workers


def test_workers_in_the_middle_of_a_long_batch_are_ended(make_loader: Make) -> None:
    loader = make_loader(Numbers(hang=True), num_workers=2)
    loader._iterator = loader._start()
    workers = multiprocessing.active_children()
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 4, "torch waits 5 s for each"
    assert len(workers) == 2
    assert not any(worker.is_alive() for worker in workers)


def test_python_ends_workers_that_nobody_did(make_loader: Make) -> None:
    loader = make_loader(num_workers=1)
    take(loader, 4)
    (worker,) = multiprocessing.active_children()
    with Processes([worker.pid or 0]) as workers:
        worker.terminate()  # as it does when it exits, and then waits for the end
        assert workers.end_within()


TRAINER = """
import multiprocessing, sys
import torch.utils.data._utils.worker
from tests.unit.data.test_loader import Numbers
from speedtronic.data import SampleLoader, SampleOrder
order = SampleOrder(22, seed=0, shuffle=True, drop_last=False, target_batch_size=8)
loader = SampleLoader(Numbers(), order, micro_batch_size=4, num_workers=2)
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 3600  # torch's own watch on its parent
loader.next_batch()
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
sys.stdin.read()
"""


def test_workers_end_with_a_killed_trainer() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    try:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        with Processes(pids) as workers:
            assert workers.num_running() == 2
            trainer.kill()
            trainer.wait()
            assert workers.end_within()
    finally:
        trainer.kill()
        trainer.communicate()


def test_what_workers_get_survives_spawning(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    source = TextSource([path], block_size=4)
    order = SampleOrder(len(source), seed=0, shuffle=True, drop_last=False, target_batch_size=1)
    positions = _Positions(source, order)
    wanted = positions.__getitems__([3, 70])
    got = pickle.loads(pickle.dumps(positions)).__getitems__([3, 70])
    assert isinstance(wanted, dict)
    assert isinstance(got, dict)
    assert torch.equal(got["labels"], wanted["labels"])


def test_workers_read_many_text_files(tmp_path: Path, make_loader: Make) -> None:
    text = os.urandom(300)
    for number in range(100):
        (tmp_path / f"{number:03}").write_bytes(text[3 * number : 3 * number + 3])
    source = TextSource(sorted(tmp_path.iterdir()), block_size=7)
    loader = make_loader(source, num_samples=len(source), num_workers=2, shuffle=False)
    labels = [loader.next_batch()["labels"] for _ in range(10)]
    assert bytes(torch.cat(labels).flatten().tolist()) == text[1 : 1 + 280]
    assert wait_until(lambda: len(multiprocessing.active_children()) == 2, 1.0)
