"""Fetch batches of a map-style dataset by number, in workers or in this process."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from speedtronic.data.generators import tell_epoch
from speedtronic.data.seeding import seed_streams
from speedtronic.data.workers import START_METHOD, WorkerInit


class EpochIndices:
    """The sampler of the loader that fetches: the rest of the current epoch's indices."""

    current: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.current


def make_fetching_loader(theirs: Any, indices: EpochIndices, seed: int) -> DataLoader[Any]:
    """Make a torch loader that fetches numbered batches as the user's loader `theirs` would."""
    context = theirs.multiprocessing_context
    if theirs.num_workers and context is None:
        context = START_METHOD
    return DataLoader(
        _Fetcher(theirs, seed),
        batch_size=None,
        sampler=indices,
        collate_fn=_as_it_is,
        num_workers=theirs.num_workers,
        prefetch_factor=theirs.prefetch_factor if theirs.num_workers else None,
        pin_memory=theirs.pin_memory,
        timeout=theirs.timeout,
        worker_init_fn=WorkerInit(os.getpid(), _UserWorkerInit(theirs.worker_init_fn)),
        multiprocessing_context=context if theirs.num_workers else None,
        generator=torch.Generator(),
        persistent_workers=theirs.persistent_workers,
    )


class _Fetcher(Dataset[Any]):
    """Fetches and collates a numbered batch as the user's loader would; lives in the workers."""

    def __init__(self, loader: Any, seed: int) -> None:
        self.dataset = loader.dataset
        self._seed = seed
        self._told: int | None = None
        self._fetcher = _MapDatasetFetcher(
            loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
        )

    def __getitem__(self, numbered: tuple[int, int, Any]) -> Any:
        epoch, place, index = numbered
        if get_worker_info() is not None:
            seed_streams(self._seed, epoch, place)
            if epoch != self._told:
                # A worker that lives on has been told only of the epoch in which it began.
                self._told = epoch
                tell_epoch(self.dataset, epoch)
        return self._fetcher.fetch(index)


class _UserWorkerInit:
    """Shows the user's own dataset to their `worker_init_fn`, as torch would."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker_id: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._then is not None:
            self._then(worker_id)


def _as_it_is(batch: Any) -> Any:
    return batch
