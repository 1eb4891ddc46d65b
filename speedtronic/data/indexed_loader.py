"""Read a loader over a map-style dataset by position: resumed at once, with draws that repeat."""

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from speedtronic.data.generators import tell_epoch
from speedtronic.data.indexed_fetching import EpochIndices, make_fetching_loader
from speedtronic.data.seeding import seed_streams
from speedtronic.data.workers import shut_down_workers, starting_workers

STOCK = (
    list,
    tuple,
    range,
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
"""Samplers whose order follows from the epoch, the seed and their generator alone."""

TORCHDATA_SAMPLERS = ("RandomSampler", "BatchSampler", "StatefulDistributedSampler")


class IndexedBatches:
    """Iterates over the batches of a DataLoader over a map-style dataset, epoch after epoch.

    The order comes from the loader's own sampler, and its workers fetch and collate as they would.
    But each batch is drawn under a seed of its own, in whichever worker; so a place in an epoch is
    reached by drawing the indices before it, which fetches nothing. Where more than the epoch and
    the generators of torch's samplers decides the order, those of all epochs are drawn again.

    Args:
        loader: one for which `is_indexed` is true.
        seed: of all draws.
        micro_batch_size: samples of a full batch.
        beat: called now and then while indices are drawn again.
    """

    def __init__(
        self, loader: Any, seed: int, micro_batch_size: int, beat: Callable[[], None]
    ) -> None:
        self._loader = loader
        self._seed = seed
        self._size = micro_batch_size
        self._beat = beat
        self._epoch = 0
        self._taken = 0
        self._skip = 0
        self._samplers = _samplers_of(loader)
        self._begun_with: dict[str, Any] = {}
        self._indices = EpochIndices()
        self._torch_loader = make_fetching_loader(self._loader, self._indices, self._seed)
        self._iterator: Any = None

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        tell_epoch(self._loader, epoch)

    def __iter__(self) -> "IndexedBatches":
        skip, self._skip = self._skip, 0
        self._indices.current = self._begin(self._epoch, skip)
        self._taken = skip
        with starting_workers():
            self._iterator = iter(self._torch_loader)
        return self

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._taken += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the batches taken in this epoch and, if that suffices, generator states."""
        state: dict[str, Any] = {"batches": self._taken}
        if self._is_stock():
            state["generators"] = self._begun_with
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration skip the batches already taken; call `set_epoch` first.

        The state may also be one of torchdata's own, from before there was this class.
        """
        self._skip = _num_batches(state)
        if "generators" in state and self._is_stock():
            for name, generator in self._generators().items():
                generator.set_state(state["generators"][name])
            return
        epoch = self._epoch
        for earlier in range(epoch):
            tell_epoch(self._loader, earlier)
            for _ in self._begin(earlier, 0):
                pass
        tell_epoch(self._loader, epoch)

    def close(self) -> None:
        """End the workers; iterating starts new ones."""
        iterator, self._iterator = self._iterator, None
        shut_down_workers(iterator)
        self._torch_loader = make_fetching_loader(self._loader, self._indices, self._seed)

    def _begin(self, epoch: int, skip: int) -> Iterator[Any]:
        """Return an iterator over the rest of an epoch's indices, numbered.

        All draws are torch's own, in its order: it iterates a sampler twice where it starts
        workers, with the workers' seed in between.
        """
        self._begun_with = {
            name: generator.get_state().clone() for name, generator in self._generators().items()
        }
        seed_streams(self._seed, epoch, 0)
        drawn = iter(self._loader._index_sampler)
        if epoch == 0 or not self._loader.persistent_workers:
            seed = torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)
            self._torch_loader.generator.manual_seed(int(seed))
            if self._loader.num_workers:
                drawn = iter(self._loader._index_sampler)
        rest = self._number(epoch, drawn)
        for _ in itertools.islice(rest, skip):
            pass
        return rest

    def _number(self, epoch: int, drawn: Iterator[Any]) -> Iterator[Any]:
        for number in itertools.count():
            if number % 1000 == 999:
                self._beat()
            # What a sampler draws for a batch must not depend on how far ahead workers are. The
            # first draws of an epoch come right after the workers' seed.
            if number or not self._loader.num_workers:
                seed_streams(self._seed, epoch, number * self._size)
            try:
                index = next(drawn)
            except StopIteration:
                return
            yield epoch, number * self._size, index

    def _is_stock(self) -> bool:
        stock = STOCK + _of_torchdata("sampler", *TORCHDATA_SAMPLERS)
        return all(type(sampler) in stock for sampler in self._samplers)

    def _generators(self) -> dict[str, torch.Generator]:
        parts = {"loader": self._loader, **{str(n): x for n, x in enumerate(self._samplers)}}
        found = {name: getattr(part, "generator", None) for name, part in parts.items()}
        return {name: x for name, x in found.items() if isinstance(x, torch.Generator)}


def is_indexed(loader: DataLoader[Any]) -> bool:
    """Whether `IndexedBatches` can read it: map-style data, iterated as torch or torchdata do."""
    iterates = type(loader).__iter__, type(loader)._get_iterator
    usual = {
        (kind.__iter__, kind._get_iterator)
        for kind in (DataLoader, *_of_torchdata("stateful_dataloader", "StatefulDataLoader"))
    }
    special = isinstance(loader.dataset, IterableDataset | IterDataPipe | MapDataPipe)
    return iterates in usual and not special and _starts_children(loader)


def _starts_children(loader: DataLoader[Any]) -> bool:
    context = loader.multiprocessing_context if loader.num_workers else None
    return context is None or context.get_start_method() != "forkserver"


def _samplers_of(loader: Any) -> list[Any]:
    """Return the samplers that determine the order, from the outermost to the innermost."""
    found = [loader._index_sampler]
    while (inner := getattr(found[-1], "sampler", None)) is not None:
        found.append(inner)
    return found


def _num_batches(state: dict[str, Any]) -> int:
    if "_snapshot" in state:
        return int(state["_snapshot"]["_snapshot_step"] + state["_steps_since_snapshot"])
    return int(state["batches"] if "batches" in state else state["_num_yielded"])


def _of_torchdata(module: str, *names: str) -> tuple[Any, ...]:
    """Return classes of torchdata by name; none if torchdata is not imported."""
    found = sys.modules.get(f"torchdata.stateful_dataloader.{module}")
    return tuple(getattr(found, name) for name in names if hasattr(found, name))
