"""Data and tokenizers as a user would write them, named in configurations by the tests."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

Item = dict[str, torch.Tensor]

NUM_TOKENS = 50
LENGTH = 8


def item(number: int, noise: int = 0) -> Item:
    """Tokens that a model can learn, from a number, turned by `noise`."""
    tokens = (number * 7 + noise + torch.arange(LENGTH + 1)) % NUM_TOKENS
    return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def draw() -> int:
    """A number from each global stream."""
    return random.randrange(5) + int(np.random.randint(5)) + int(torch.randint(5, ()))


class Augmented:
    """Map-style; every item is drawn at random."""

    def __init__(self, num_items: int = 22) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> Item:
        return item(index, draw())


class Stream:
    """Iterable, each item drawn at random; neither knows its epoch nor has a state."""

    def __init__(self, num_items: int = 22) -> None:
        self.num_items = num_items

    def __iter__(self) -> Iterator[Item]:
        for index in range(self.num_items):
            yield item(index, draw())


class CountingStream(Stream):
    """Iterable; starts elsewhere each time it is iterated, which nobody tells it."""

    def __init__(self, num_items: int = 22) -> None:
        super().__init__(num_items)
        self.num_passes = 0

    def __iter__(self) -> Iterator[Item]:
        self.num_passes += 1
        for index in range(self.num_items):
            yield item(index + self.num_passes, draw())


class EpochStream(Stream):
    """Iterable; each epoch has an order of its own, by `set_epoch`."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Item]:
        order = np.random.default_rng(self.epoch).permutation(self.num_items)
        yield from (item(int(index), draw()) for index in order)


class StatefulStream(IterableDataset[Item]):
    """Iterable with a state of its own, in which many types are."""

    def __init__(self, num_items: int = 22) -> None:
        self.num_items = num_items
        self.next = 0
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[Item]:
        while self.next < self.num_items:
            self.next += 1  # before the yield: the state is asked for after it
            yield item(self.next, int(self.rng.integers(5)) + draw())
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": np.int64(self.next), "rng": self.rng.bit_generator.state, "tag": b"\0x"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert type(state["next"]) is np.int64
        assert state["tag"] == b"\0x"
        self.next = int(state["next"])
        self.rng.bit_generator.state = state["rng"]


class SplitStream(IterableDataset[Item]):
    """Iterable; each loader worker takes its part."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def __iter__(self) -> Iterator[Item]:
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from (item(index) for index in range(first, self.num_items, step))


class Indexed(torch.utils.data.Dataset[Item]):
    """Map-style without any randomness."""

    def __init__(self, num_items: int = 22) -> None:
        self.num_items = num_items

    def __len__(self) -> int:
        return self.num_items

    def __getitem__(self, index: int) -> Item:
        return item(index)


def augmented(num_items: int = 22) -> Augmented:
    return Augmented(num_items)


def stream(num_items: int = 22) -> Stream:
    return Stream(num_items)


def counting_stream(num_items: int = 22) -> CountingStream:
    return CountingStream(num_items)


def epoch_stream(num_items: int = 22) -> EpochStream:
    return EpochStream(num_items)


def stateful_stream(num_items: int = 22) -> StatefulStream:
    return StatefulStream(num_items)


def stateful_loader(*, of: str = "map", num_items: int = 22, **options: Any) -> Any:
    """torchdata's loader: shuffled "map", or "stream", "stateful" or "hf" in their own order."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    given: dict[str, Any] = {"num_workers": 2, "batch_size": 4, **options}
    if of == "map":
        return StatefulDataLoader(Indexed(num_items), shuffle=True, **given)
    if of == "hf":
        return StatefulDataLoader(hf_iterable(num_items), **given)
    dataset = SplitStream(num_items) if of == "stream" else StatefulStream(num_items)
    return StatefulDataLoader(dataset, **given)


def torch_loader(num_items: int = 22, **options: Any) -> Any:
    """torch's own loader, which has no state."""
    given: dict[str, Any] = {"num_workers": 0, "batch_size": 4, "shuffle": True, **options}
    return torch.utils.data.DataLoader(Indexed(num_items), **given)


def _columns(num_items: int) -> dict[str, list[list[int]]]:
    items = [item(index) for index in range(num_items)]
    return {name: [one[name].tolist() for one in items] for name in items[0]}


def hf_map(num_items: int = 22) -> Any:
    import datasets

    return datasets.Dataset.from_dict(_columns(num_items)).with_format("torch")


def hf_iterable(num_items: int = 22, how: str = "plain") -> Any:
    """Hugging Face's iterable over shards; `how` is "plain", "map", "batched" or "generator"."""
    import datasets

    if how == "generator":
        made = datasets.IterableDataset.from_generator(_rows, gen_kwargs={"num_items": num_items})
        return made.with_format("torch")
    made = datasets.Dataset.from_dict(_columns(num_items)).to_iterable_dataset(num_shards=3)
    if how == "map":
        made = made.map(_turn)
    if how == "batched":
        made = made.map(_same, batched=True, batch_size=5)
    if how == "shards":
        made = made.shuffle(seed=3, buffer_size=1)
    return made.with_format("torch")


def _rows(num_items: int) -> Iterator[dict[str, list[int]]]:
    for index in range(num_items):
        yield {name: value.tolist() for name, value in item(index).items()}


def _turn(row: dict[str, Any]) -> dict[str, Any]:
    return {name: [(value + 1) % NUM_TOKENS for value in row[name]] for name in row}


def _same(rows: dict[str, Any]) -> dict[str, Any]:
    return dict(rows)


class Words:
    """A tokenizer: a word is its length."""

    def encode(self, text: str) -> list[int]:
        return [len(word) for word in text.split()]


words = Words()


def code_points(text: str) -> np.ndarray:
    return np.array([ord(character) for character in text])
