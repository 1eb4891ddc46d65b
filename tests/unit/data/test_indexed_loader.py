"""Loaders of one's own over map-style data: whatever the sampler, a resume has the same batches."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from speedtronic.data.seeding import seed_streams, streams_kept
from speedtronic.data.stream import StreamLoader

NUM_ITEMS, SIZE, NUM_BATCHES = 10, 2, 12  # two epochs and a bit


def draw() -> int:
    whole = 10**6
    return random.randrange(whole) ^ int(np.random.randint(whole)) ^ int(torch.randint(whole, ()))


class Items(Dataset[torch.Tensor]):
    """An item is its index, the epoch that it was told, and a number drawn from all streams."""

    epoch = -1

    def __len__(self) -> int:
        return NUM_ITEMS

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.epoch, draw()])


class Plain(Items):
    """Nobody tells it the epoch."""

    set_epoch = None  # type: ignore[assignment]


class Order(Sampler[int]):
    """Draws an order from its own generator, when iterated or at the first index."""

    def __init__(self, generator: Any, eager: bool = False) -> None:
        self.generator = generator
        self.eager = eager

    def __len__(self) -> int:
        return NUM_ITEMS

    def order(self) -> list[int]:
        if isinstance(self.generator, torch.Generator):
            return torch.randperm(NUM_ITEMS, generator=self.generator).tolist()
        if isinstance(self.generator, random.Random):
            return self.generator.sample(range(NUM_ITEMS), NUM_ITEMS)
        return self.generator.permutation(NUM_ITEMS).tolist()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order()) if self.eager else self.lazily()

    def lazily(self) -> Iterator[int]:
        yield from self.order()


class Counting(Order):
    """Nothing but its passes tells it the order."""

    def __init__(self) -> None:
        super().__init__(None)
        self.passes = 0

    def order(self) -> list[int]:
        self.passes += 1
        return [(index + self.passes) % NUM_ITEMS for index in range(NUM_ITEMS)]


class Shuffling(Counting):
    """Shuffles the order of the last epoch again, by the global stream."""

    def __init__(self) -> None:
        super().__init__()
        self.last = list(range(NUM_ITEMS))

    def order(self) -> list[int]:
        random.shuffle(self.last)
        return self.last


class Drawing(Sampler[list[int]]):
    """A batch sampler that draws each batch from the global streams when it is asked for."""

    def __len__(self) -> int:
        return NUM_ITEMS // SIZE

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield [draw() % NUM_ITEMS for _ in range(SIZE)]


class WithState(Shuffling):
    """A sampler with a state, as torchdata takes it."""

    def state_dict(self) -> dict[str, Any]:
        return {"last": list(self.last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last = list(state["last"])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def by(sampler: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"sampler": sampler(), "batch_size": SIZE}


def in_batches(sampler: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    return lambda: {"batch_sampler": BatchSampler(sampler(), SIZE, True)}


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": lambda: {"batch_size": SIZE},
    "shuffled": lambda: {"batch_size": SIZE, "shuffle": True},
    "shuffled, generator": lambda: {"batch_size": SIZE, "shuffle": True, "generator": seeded()},
    "random": by(lambda: RandomSampler(range(NUM_ITEMS), generator=seeded())),
    "replacement": by(lambda: RandomSampler(range(NUM_ITEMS), True, 14, seeded())),
    "subset": by(lambda: SubsetRandomSampler(range(0, NUM_ITEMS), seeded())),
    "subset, global": by(lambda: SubsetRandomSampler(range(0, NUM_ITEMS))),
    "weighted": by(lambda: WeightedRandomSampler([1.0] * NUM_ITEMS, NUM_ITEMS, False)),
    "weighted, generator": by(
        lambda: WeightedRandomSampler([1.0, 2.0] * 5, NUM_ITEMS, generator=seeded())
    ),
    "distributed": by(lambda: DistributedSampler(Plain(), 1, 0)),
    "stateful distributed": by(lambda: StatefulDistributedSampler(Plain(), 1, 0)),
    "buckets": in_batches(lambda: RandomSampler(range(NUM_ITEMS))),
    "own": by(lambda: Order(seeded())),
    "own, eager": by(lambda: Order(seeded(), eager=True)),
    "own, Python's": by(lambda: Order(random.Random(1))),
    "own, NumPy's": in_batches(lambda: Order(np.random.default_rng(1))),
    "own, NumPy's old": by(lambda: Order(np.random.RandomState(1), eager=True)),
    "counting": by(Counting),
    "shuffling": in_batches(Shuffling),
    "with a state": by(WithState),
    "drawing": lambda: {"batch_sampler": Drawing()},
    "a list": lambda: {"batch_sampler": [[3, 1], [0, 2], [9, 8]]},
    "ragged": lambda: {"batch_size": 4, "shuffle": True},
}


def loader_of(
    order: str, kind: type[DataLoader[Any]] = StatefulDataLoader, **given: Any
) -> StreamLoader:
    size = 4 if order == "ragged" else SIZE
    dataset = given.pop("dataset", Items)

    def make() -> DataLoader[Any]:
        with streams_kept():
            seed_streams(5, 0, 0)
            return kind(dataset(), **ORDERS[order](), **given)

    return StreamLoader(make, micro_batch_size=size, seed=5)


def take(loader: StreamLoader, num_batches: int) -> list[Any]:
    return [loader.next_batch().tolist() for _ in range(num_batches)]


def assert_resumes(
    make: Callable[[], StreamLoader], stops: Sequence[int] = range(NUM_BATCHES)
) -> list[Any]:
    """At each of `stops`, and by resumes at all of them; returns the batches of the whole."""
    whole, expected, states = make(), [], []
    for _ in range(NUM_BATCHES):
        states.append(whole.state_dict())
        expected += take(whole, 1)
    whole.close()
    for stop in stops:
        resumed = make()
        resumed.load_state_dict(states[stop])
        assert take(resumed, min(NUM_BATCHES - stop, 3)) == expected[stop : stop + 3], stop
        resumed.close()
    taken: list[Any] = []
    state = states[0]
    for stop in [*stops[1:], NUM_BATCHES]:
        loader = make()
        loader.load_state_dict(state)
        taken += take(loader, stop - len(taken))
        state = loader.state_dict()
        loader.close()
    assert taken == expected
    return expected


FEW = (0, 4, 7)  # starting workers takes a while


@pytest.mark.parametrize("kind", [StatefulDataLoader, DataLoader])
@pytest.mark.parametrize("order", ORDERS)
def test_any_order_is_that_of_the_whole(order: str, kind: type[DataLoader[Any]]) -> None:
    expected = assert_resumes(lambda: loader_of(order, kind))
    if order not in ("none", "a list"):
        indices = [index for batch in expected for index, _, _ in batch]
        assert indices[:NUM_ITEMS] != indices[NUM_ITEMS : 2 * NUM_ITEMS]


@pytest.mark.parametrize("order", ["weighted", "own", "shuffled, generator", "drawing", "ragged"])
@pytest.mark.parametrize(
    "given",
    [
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 3, "prefetch_factor": 1},
        {"num_workers": 2, "snapshot_every_n_steps": 3},
    ],
    ids=str,
)
def test_so_it_is_with_workers(order: str, given: dict[str, Any]) -> None:
    assert_resumes(lambda: loader_of(order, **given), FEW)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("order", ["shuffled, generator", "own"])
def test_so_it_is_with_workers_of_torchs_own_loader(order: str, persistent: bool) -> None:
    given = {"num_workers": 2, "persistent_workers": persistent}
    assert_resumes(lambda: loader_of(order, DataLoader, **given), FEW)


def test_draws_do_not_depend_on_the_number_of_workers() -> None:
    def taken(num_workers: int) -> list[Any]:
        loader = loader_of("none", num_workers=num_workers)
        batches = take(loader, NUM_BATCHES)
        loader.close()
        return batches

    one, two = taken(1), taken(2)
    assert one == two
    draws = [row[2] for batch in one for row in batch]
    assert len(set(draws)) == len(draws)


def test_every_epoch_is_told_in_workers_that_live_on() -> None:
    for kind in (StatefulDataLoader, DataLoader):
        loader = loader_of("none", kind, num_workers=2, persistent_workers=True)
        told = [row[1] for batch in take(loader, 12) for row in batch]
        loader.close()
        assert told == [0] * 10 + [1] * 10 + [2] * 4


@pytest.mark.parametrize("wrap", [lambda x: Subset(x, range(10)), lambda x: ConcatDataset([x])])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_epoch_is_told_to_a_wrapped_dataset(
    wrap: Callable[[Any], Any], num_workers: int
) -> None:
    loader = loader_of("none", dataset=lambda: wrap(Items()), num_workers=num_workers)
    told = [row[1] for batch in take(loader, 12) for row in batch]
    resumed = loader_of("none", dataset=lambda: wrap(Items()), num_workers=num_workers)
    resumed.load_state_dict(loader.state_dict())
    told += [row[1] for batch in take(resumed, 4) for row in batch]
    loader.close(), resumed.close()
    assert told == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 2


def test_torchdatas_state_of_an_earlier_version_is_taken_up() -> None:
    expected = take(loader_of("shuffled"), NUM_BATCHES)
    for source in (
        {"_num_yielded": 3, "_iterator_finished": False},
        {"_snapshot": {"_snapshot_step": 2}, "_steps_since_snapshot": 1},
    ):
        resumed = loader_of("shuffled")
        resumed.load_state_dict(
            {"samples": 16, "epoch": 1, "index": 6, "begun": 0, "seed": 5, "source": source}
        )
        assert take(resumed, 4) == expected[8:12]


class Keeping(Plain):
    """Draws from a generator that it keeps."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(self.rng.integers(10**6)), 0])


class Inside(Plain):
    def __init__(self) -> None:
        self.transforms = [lambda x: x, Keeping()]

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transforms[1][index]  # type: ignore[index,no-any-return]


@pytest.mark.parametrize("dataset", [Keeping, Inside])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_generator_in_the_dataset_is_wound_by_fetching_again(
    dataset: type[Any], num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "speedtronic"):
        assert_resumes(lambda: loader_of("shuffled", dataset=dataset, num_workers=num_workers), FEW)
    assert "skipping 8 samples of a StatefulDataLoader to go on at sample 8; " in caplog.text
    assert "its dataset keeps a generator, " in caplog.text


def test_the_state_resumes_without_skipping(caplog: pytest.LogCaptureFixture) -> None:
    fetched: list[int] = []

    class Noting(Items):
        def __getitem__(self, index: int) -> torch.Tensor:
            fetched.append(index)
            return super().__getitem__(index)

    for order in ("shuffled", "own", "buckets"):
        first, second = (loader_of(order, dataset=Noting) for _ in range(2))
        take(first, 8)
        second.load_state_dict(first.state_dict())
        fetched.clear()
        take(second, 1)
        assert len(fetched) == SIZE
    assert not [record for record in caplog.records if "skipping" in record.message]


def test_batches_come_in_order_whatever_the_loader_asks_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = loader_of("none", num_workers=2, in_order=False)
    with caplog.at_level(logging.WARNING, "speedtronic"):
        assert [row[0] for batch in take(loader, 5) for row in batch] == list(range(10))
    loader.close()
    assert "in_order=False is left out" in caplog.text


def test_worker_init_fn_sees_the_users_dataset() -> None:
    seen = torch.zeros(1).share_memory_()

    def note(worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        seen.fill_(isinstance(info.dataset, Items))

    loader = loader_of("none", num_workers=1, worker_init_fn=note)
    take(loader, 1)
    loader.close()
    assert seen.item() == 1
