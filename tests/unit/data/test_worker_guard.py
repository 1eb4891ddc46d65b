"""Iterables with a state that is not enough, alone and in workers: exact all the same, or named."""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from speedtronic.data.stream import StreamLoader
from tests.own_parts import hf_iterable

NUM_ITEMS = 10


def row(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


class Shuffled(IterableDataset[torch.Tensor]):
    """Draws its order from a global stream when it begins; its state is the place in it."""

    def __init__(self) -> None:
        self.next = 0

    def order(self) -> list[int]:
        return torch.randperm(NUM_ITEMS).tolist()

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = self.order()
        while self.next < NUM_ITEMS:
            self.next += 1
            yield row(order[self.next - 1])
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


class ByPython(Shuffled):
    def order(self) -> list[int]:
        return random.sample(range(NUM_ITEMS), NUM_ITEMS)


class Eager(Shuffled):
    """Draws the order when `iter` is called, and each item too."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.items(self.order())

    def items(self, order: list[int]) -> Iterator[torch.Tensor]:
        while self.next < NUM_ITEMS:
            self.next += 1
            yield row(order[self.next - 1], random.randrange(1000))
        self.next = 0


class Keeping(Shuffled):
    """Keeps a generator that is not in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def order(self) -> list[int]:
        return list(range(NUM_ITEMS))


class Whole(Keeping):
    """Its generator is in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "rng": self.rng.bit_generator.state}


class EpochsAndGenerator:
    """Is told the epoch, but its order is by its own generator."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def set_epoch(self, epoch: int) -> None:
        pass

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (row(int(index)) for index in self.rng.permutation(NUM_ITEMS))


class Split(Shuffled):
    """Each worker takes its part; with a state, as workers must have one each."""

    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.draws = draws
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        while first + self.next * step < 2 * NUM_ITEMS:
            self.next += 1
            drawn = random.randrange(10**6) + int(torch.randint(10**6, ())) if self.draws else 0
            yield row(first + (self.next - 1) * step, self.epoch, drawn)
        self.next = 0


def take(loader: StreamLoader, num_batches: int) -> list[Any]:
    return [loader.next_batch().tolist() for _ in range(num_batches)]


def assert_resumes(
    make: Callable[[], Any], size: int, num_batches: int, stops: list[int] | None = None
) -> list[Any]:
    """At each of `stops`, and by resumes at all of them; returns the batches of the whole."""

    def loader() -> StreamLoader:
        return StreamLoader(make, micro_batch_size=size, seed=5)

    whole, expected, states = loader(), [], []
    for _ in range(num_batches):
        states.append(whole.state_dict())
        expected += take(whole, 1)
    whole.close()
    stops = list(range(num_batches)) if stops is None else stops
    for stop in stops:
        resumed = loader()
        resumed.load_state_dict(states[stop])
        assert take(resumed, num_batches - stop) == expected[stop:], stop
        resumed.close()
    taken: list[Any] = []
    state = states[0]
    for stop in [*stops[1:], num_batches]:
        resumed = loader()
        resumed.load_state_dict(state)
        taken += take(resumed, stop - len(taken))
        state = resumed.state_dict()
        resumed.close()
    assert taken == expected
    return expected


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", [Shuffled, ByPython, Eager, EpochsAndGenerator])
def test_an_order_drawn_when_an_epoch_begins_is_that_of_the_whole(
    kind: type[Any], size: int
) -> None:
    expected = assert_resumes(kind, size, 24 // size)
    indices = [one[0] for batch in expected for one in batch]
    assert sorted(indices[:NUM_ITEMS]) == sorted(indices[NUM_ITEMS:20]) == list(range(NUM_ITEMS))
    assert indices[:NUM_ITEMS] != indices[NUM_ITEMS:20]


def test_so_it_is_in_torchdatas_loader() -> None:
    assert_resumes(lambda: StatefulDataLoader(Shuffled(), batch_size=2), 2, 12)


@pytest.mark.parametrize(
    "given",
    [
        {"num_workers": 2},
        {"num_workers": 3, "prefetch_factor": 1},
        {"num_workers": 2, "snapshot_every_n_steps": 3},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=str,
)
def test_a_stream_in_workers_resumes_at_every_batch(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    stops = [0, 1, 2, 3, 4, 9, 10, 11, 12]

    def of_hugging_face() -> Any:
        table = hf_iterable(18).select_columns("input_ids").map(_first)
        return StatefulDataLoader(table.select_columns("x"), batch_size=2, **given)

    def batches() -> StreamLoader:
        return StreamLoader(of_hugging_face, micro_batch_size=2, seed=5)

    whole, expected, state, taken = batches(), [], None, []
    for _ in range(13):
        expected.append(whole.next_batch()["x"].tolist())
    whole.close()
    for stop in [*stops[1:], 13]:
        resumed = batches()
        if state is not None:
            resumed.load_state_dict(state)
        taken += [resumed.next_batch()["x"].tolist() for _ in range(stop - len(taken))]
        state = resumed.state_dict()
        resumed.close()
    assert taken == expected
    skipped = [record.args[0] for record in caplog.records if "skipping" in record.message]
    assert skipped and max(skipped) <= 2 * (3 + 3)
    assert "draw" not in caplog.text


def _first(item: dict[str, Any]) -> dict[str, Any]:
    return {"x": item["input_ids"][0]}


def test_draws_in_workers_are_skipped_to(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "speedtronic"):
        assert_resumes(
            lambda: StatefulDataLoader(Split(draws=True), batch_size=2, num_workers=2),
            2,
            13,
            [0, 1, 5, 11],
        )
    assert "the workers of the StatefulDataLoader draw from the global random" in caplog.text
    assert "skipping 22 samples of a StatefulDataLoader to go on at sample 22" in caplog.text


@pytest.mark.parametrize("kind", [StatefulDataLoader, DataLoader])
@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_is_told_in_the_workers(
    kind: type[DataLoader[Any]], persistent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"batch_size": 2, "num_workers": 2, "persistent_workers": persistent}
    expected = assert_resumes(lambda: kind(Split(), **given), 2, 23, [0, 4, 12])
    assert [batch[0][1] for batch in expected] == [0] * 10 + [1] * 10 + [2] * 3
    assert "draw" not in caplog.text


@pytest.mark.parametrize(("kind", "warned"), [(Keeping, True), (Whole, False), (Split, False)])
def test_a_generator_that_no_state_holds_is_named(
    kind: type[Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loader = StreamLoader(kind, micro_batch_size=2, seed=5)
    for _ in range(2):
        take(loader, 1)
        loader.state_dict()
    named = "Keeping.rng is a generator, and state_dict() of the Keeping does not seem to hold"
    assert caplog.text.count(named) == warned
    assert len(caplog.records) == warned
