import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, DistributedSampler, Subset

from speedtronic.data.generators import generators_in, holds_generator, listeners_in, tell_epoch


class Holder:
    def __init__(self, **kept: Any) -> None:
        self.__dict__.update(kept)


class Slotted:
    __slots__ = ("rng", "unset")

    def __init__(self) -> None:
        self.rng = random.Random()


def closing_over(kept: Any) -> Any:
    return lambda: kept


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (Holder(rng=torch.Generator()), ["Holder.rng"]),
        (Holder(rng=random.Random()), ["Holder.rng"]),
        (Holder(rng=np.random.default_rng()), ["Holder.rng"]),
        (Holder(rng=np.random.RandomState()), ["Holder.rng"]),
        (Holder(a=Holder(b=[0, {"c": random.Random()}])), ["Holder.a.b[1]['c']"]),
        (Holder(draw=closing_over(random.Random())), ["Holder.draw.kept"]),
        (Holder(draw=random.Random().random), ["Holder.draw.__self__"]),
        (Holder(draw=functools.partial(min, random.Random())), ["Holder.draw.args[0]"]),
        (Slotted(), ["Slotted.rng"]),
        (Holder(draw=random.random, numpys=np.random.rand, torchs=torch.default_generator), []),
        (Holder(module=random, items=[1, "a", None], data=torch.ones(3)), []),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else str(value),
)
def test_generators_are_found_where_they_hide(value: Any, paths: list[str]) -> None:
    assert generators_in(value) == paths


def test_circles_end() -> None:
    holder = Holder()
    holder.__dict__["itself"] = holder
    assert generators_in(holder) == []


@pytest.mark.parametrize(
    ("state", "holds"),
    [
        ({"next": 3, "order": [1, 2]}, False),
        ({"rng": np.random.default_rng().bit_generator.state}, True),
        ({"rng": [random.Random().getstate()]}, True),
        ({"rng": torch.Generator().get_state()}, True),
        ({"rng": np.random.RandomState().get_state()}, True),
        ({"pickled": b"..."}, True),
    ],
    ids=["none", "NumPy's", "Python's", "torch's", "NumPy's old", "bytes"],
)
def test_a_state_that_holds_a_generator(state: Any, holds: bool) -> None:
    assert holds_generator(state) is holds


class Told(Holder):
    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 4


def test_all_that_is_wrapped_is_told() -> None:
    datasets: list[Any] = [Told(), Told()]
    whole: Any = Subset(ConcatDataset(datasets), [0])
    sampler: Any = DistributedSampler(whole, 1, 0)
    loader: Any = DataLoader(whole, batch_sampler=BatchSampler(sampler, 1, False))
    assert len(listeners_in(loader)) == 3
    tell_epoch(loader, 7)
    assert [part.epoch for part in (*datasets, sampler)] == [7, 7, 7]
