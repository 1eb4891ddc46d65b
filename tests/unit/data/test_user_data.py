"""Map-style data of one's own, and what a factory may return."""

import multiprocessing
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.data import BatchLoader, SampleLoader, build_loader
from speedtronic.data.seeding import seed_streams, streams_kept
from speedtronic.data.stream import StreamLoader
from speedtronic.data.user_data import MapSource, kind_of
from speedtronic.errors import ConfigError, DataError
from tests import own_parts


def make_config(dataset: str, **data: Any) -> SpeedtronicConfig:
    given = {"seed": 5, "micro_batch_size": 4, "target_batch_size": 4, "drop_last": False, **data}
    name = dataset if ":" in dataset else f"tests.own_parts:{dataset}"
    return SpeedtronicConfig.from_dict({"data": {"dataset": name, **given}})


Make = Callable[..., BatchLoader]


@pytest.fixture
def make_loader() -> Iterator[Make]:
    made = []

    def make(dataset: str, **data: Any) -> BatchLoader:
        made.append(build_loader(make_config(dataset, **data), pin_memory=False))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
    assert multiprocessing.active_children() == []


def take(loader: BatchLoader, num_batches: int) -> list[Any]:
    return [loader.next_batch()["input_ids"].tolist() for _ in range(num_batches)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_augmentation_does_not_depend_on_workers_nor_on_a_resume(
    make_loader: Make, shuffle: bool
) -> None:
    expected = take(make_loader("augmented", shuffle=shuffle), 16)
    for num_workers in (2, 3):
        loader = make_loader("augmented", shuffle=shuffle, num_workers=num_workers)
        assert take(loader, 16) == expected
    for done in (1, 5, 6, 11):
        first = make_loader("augmented", shuffle=shuffle)
        take(first, done)
        second = make_loader("augmented", shuffle=shuffle, num_workers=2)
        second.load_state_dict(first.state_dict())
        assert take(second, 16 - done) == expected[done:]


def test_augmentation_differs_between_items_epochs_and_seeds(make_loader: Make) -> None:
    taken = take(make_loader("augmented", dataset_args={"num_items": 20}), 10)
    assert taken[:5] != taken[5:]
    assert take(make_loader("augmented", dataset_args={"num_items": 20}, seed=6), 5) != taken[:5]


def test_the_seeds_of_an_item_are_pinned_for_ever() -> None:
    with streams_kept():
        seed_streams(5, 2, 7)
        drawn = random.random(), float(np.random.rand()), torch.initial_seed()
    assert drawn == (0.7258521782631729, 0.7097014477159742, 3042634878632127169)


def test_the_streams_of_an_item_are_unrelated() -> None:
    class Draws:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])

    draws = MapSource(Draws(), seed=0).batch(range(1000), [0] * 1000)
    assert torch.allclose(draws.mean(0), torch.full((3,), 0.5, dtype=draws.dtype), atol=0.05)
    assert len({tuple(row) for row in draws.tolist()}) == 1000
    correlation = torch.corrcoef(draws.T) - torch.eye(3)
    assert correlation.abs().max() < 0.12


@pytest.mark.parametrize("num_workers", [0, 2])
def test_global_random_streams_are_left_alone(make_loader: Make, num_workers: int) -> None:
    before = (torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate())
    loader = make_loader("augmented", num_workers=num_workers)
    take(loader, 8)
    loader.fingerprint()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_hugging_faces_map_style(make_loader: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    expected = take(make_loader("hf_map", shuffle=True), 12)
    resumed = make_loader("hf_map", shuffle=True, num_workers=2)
    resumed.load_state_dict({**resumed.state_dict(), "samples": 24})
    assert take(resumed, 6) == expected[6:]


def test_the_arguments_reach_the_factory(make_loader: Make) -> None:
    assert make_loader("augmented").state_dict()["num_samples"] == 22
    loader = make_loader("augmented", dataset_args={"num_items": 9})
    assert loader.state_dict()["num_samples"] == 9


class Mapped(own_parts.IterableDataset[Any]):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([1])


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ([1, 2], "map"),
        (torch.utils.data.TensorDataset(torch.ones(3)), "map"),
        (torch.ones(3), "map"),
        (own_parts.Augmented(), "map"),
        (own_parts.Stream(), "stream"),
        (own_parts.StatefulStream(), "stream"),
        (Mapped(), "stream"),
        (iter([1]), "stream"),
        (torch.utils.data.DataLoader([1, 2]), "batches"),  # type: ignore[arg-type]
    ],
)
def test_kinds(made: Any, kind: str) -> None:
    assert kind_of("data.dataset", made) == kind


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "data.dataset: the factory returned a NoneType, expected a dataset with __len__"),
        (3, "returned a int"),
        ("text", "returned a str"),
        (own_parts.Augmented, "returned a type"),
        ({"train": [1], "test": [2]}, "returned a dict, .*; take one of train, test"),
    ],
)
def test_other_things_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind_of("data.dataset", made)


def raising() -> None:
    raise RuntimeError("no such split")


def nothing() -> list[int]:
    return []


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        ("no.such:factory", ConfigError, r"data\.dataset is 'no\.such:factory'; it does not imp"),
        ("tests.own_parts:absent", ConfigError, r"data\.dataset is .*absent"),
        ("tests.own_parts:NUM_TOKENS", ConfigError, "a int, expected a function"),
        (
            "tests.unit.data.test_user_data:raising",
            ConfigError,
            "raised RuntimeError: no such split",
        ),
        (
            "tests.unit.data.test_user_data:nothing",
            DataError,
            r"data\.dataset: the list has no items",
        ),
    ],
)
def test_a_bad_factory_is_refused_in_one_line(
    make_loader: Make, dataset: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        make_loader(dataset)
    assert "\n" not in str(caught.value)


class Mixed(own_parts.Augmented):
    def __getitem__(self, index: int) -> own_parts.Item:
        return {"input_ids": torch.zeros(3 if index == 9 else 4)}


def mixed() -> Mixed:
    return Mixed()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_mixed_shapes_are_refused_in_one_line(make_loader: Make, num_workers: int) -> None:
    loader = make_loader("tests.unit.data.test_user_data:mixed", num_workers=num_workers)
    with pytest.raises(DataError) as caught:
        take(loader, 4)
    assert str(caught.value) == (
        "data: the samples of one batch differ: ['input_ids'] is of shape (4,) in one and (3,) in "
        "another; pad them to one shape in the dataset"
    )
    assert loader.position == 8


def test_loaders_are_chosen_by_kind(make_loader: Make) -> None:
    assert isinstance(make_loader("augmented"), SampleLoader)
    assert isinstance(make_loader("stream"), StreamLoader)
    assert isinstance(make_loader("torch_loader"), StreamLoader)


class TestFingerprint:
    def test_content_and_length_count(self, make_loader: Make) -> None:
        prints = {
            make_loader("augmented").fingerprint(),
            make_loader("augmented", num_workers=2, shuffle=True).fingerprint(),
        }
        assert len(prints) == 1
        assert make_loader("augmented", dataset_args={"num_items": 21}).fingerprint() not in prints
        assert make_loader("augmented", seed=1).fingerprint() not in prints  # other draws

    def test_one_changed_item_among_few_counts(self) -> None:
        items = [torch.arange(3) + number for number in range(8)]
        before = MapSource(items, seed=0).fingerprint()
        items[5] = items[5] + 1
        assert MapSource(items, seed=0).fingerprint() != before

    def test_hugging_faces_is_the_same_in_another_process(self, make_loader: Make) -> None:
        code = (
            "from tests.unit.data.test_user_data import make_config\n"
            "from speedtronic.data import build_loader\n"
            "print(build_loader(make_config('hf_map'), pin_memory=False).fingerprint())"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ended.stdout.strip() == make_loader("hf_map").fingerprint(), ended.stderr

    def test_hugging_faces_own_counts(self, make_loader: Make) -> None:
        dataset = own_parts.hf_map()
        before = MapSource(dataset, seed=0).fingerprint()
        dataset._fingerprint = "another"
        assert MapSource(dataset, seed=0).fingerprint() != before


class Told(own_parts.Augmented):
    """Items that show the epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> own_parts.Item:
        return {"input_ids": torch.tensor([index, self.epoch])}


def told() -> torch.utils.data.Subset[Any]:
    return torch.utils.data.Subset(Told(), range(10))  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_epoch_is_told(make_loader: Make, num_workers: int) -> None:
    loader = make_loader("tests.unit.data.test_user_data:told", num_workers=num_workers)
    epochs = [epoch for batch in take(loader, 7) for _, epoch in batch]
    assert epochs == [0] * 10 + [1] * 10 + [2] * 8
    resumed = make_loader("tests.unit.data.test_user_data:told", num_workers=num_workers)
    resumed.load_state_dict({**resumed.state_dict(), "samples": 16})
    assert [epoch for batch in take(resumed, 3) for _, epoch in batch] == [1] * 4 + [2] * 8


class Keeping(own_parts.Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(3)


def test_a_generator_that_the_dataset_keeps_is_named(caplog: pytest.LogCaptureFixture) -> None:
    for dataset in (own_parts.Augmented(), [1, 2], Told()):
        MapSource(dataset, seed=0)
    assert not caplog.records
    MapSource(torch.utils.data.Subset(Keeping(), [1, 2]), seed=0)  # type: ignore[arg-type]
    assert "data.dataset: Subset.dataset.rng is a generator that the dataset keeps" in caplog.text
