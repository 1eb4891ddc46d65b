"""Load micro batches in the resumable order, without end."""

import itertools
import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from speedtronic.data.sample_order import SampleOrder
from speedtronic.data.types import Batch, SampleSource
from speedtronic.data.workers import (
    START_METHOD,
    WorkerInit,
    own_workers,
    shut_down_workers,
    starting_workers,
)
from speedtronic.errors import DataError, RestoreError


class SampleLoader:
    """Yields micro batches without end; the position counts what the trainer received only.

    Workers start at the first batch and live until `close` or a jump. Neither they nor an iterator
    draw from the global random streams of torch, NumPy or Python.

    Args:
        source: where samples come from; `order.num_samples` of them.
        order: which sample stands at which position.
        micro_batch_size: samples a batch; may differ from what it was when the state was saved.
        num_workers: loader processes; 0 reads in this one.
        prefetch_factor: batches that each worker reads ahead; None is torch's default.
        pin_memory: put batches into page-locked memory, for a faster copy to the GPU.

    Attributes:
        position: samples handed to the trainer so far, over all epochs.
    """

    def __init__(
        self,
        source: SampleSource,
        order: SampleOrder,
        *,
        micro_batch_size: int,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.position = self._marked = 0
        self._order = order
        self._micro_batch_size = micro_batch_size
        self._dataset = _Positions(source, order)
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory
        self._iterator: Any = None

    def next_batch(self) -> Batch:
        """Return the next micro batch, of `micro_batch_size` samples; advances the position.

        Raises:
            DataError: the source could not give a sample; the position stays, safe to call again.
        """
        try:
            if self._iterator is None:
                self._iterator = self._start()
            batch: Batch | DataError = next(self._iterator)
            if isinstance(batch, DataError):
                raise batch
            self.position += self._micro_batch_size
        except BaseException:
            # The iterator is now ahead of the position: the next call has to start over.
            self.close()
            raise
        return batch

    def mark(self) -> None:
        """Remember the position for `back_to_mark`."""
        self._marked = self.position

    def back_to_mark(self) -> None:
        """Rewind to the mark: the batches since then are returned again."""
        if self.position != self._marked:
            self.close()
            self.position = self._marked

    def state_dict(self) -> dict[str, int | bool]:
        """Return position and order as plain numbers; `epoch` is for people."""
        return {
            "samples": self.position,
            "epoch": self.position // self._order.epoch_samples,
            **self._identity(),
        }

    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None:
        """Continue at the saved position; a live iterator that is exactly there is kept.

        Args:
            state: what `state_dict` returned.
            any_order: the position may count in another order than the one at hand.

        Raises:
            RestoreError: the saved position counts in another order; nothing was changed.
        """
        changed = [
            f"{name}: saved {state.get(name)}, now {value}"
            for name, value in self._identity().items()
            if state.get(name) != value
        ]
        if changed and not any_order:
            raise RestoreError(
                f"data order differs from the checkpoint's: {'; '.join(changed)}; "
                "restore the data and the data section of the configuration, or start a fresh run"
            )
        if state["samples"] != self.position:
            self.close()
            self.position = state["samples"]

    def fingerprint(self) -> str:
        """Return the source's fingerprint."""
        return self._dataset.source.fingerprint()

    def close(self) -> None:
        """End the loader's workers now; the next batch starts new ones."""
        iterator, self._iterator = self._iterator, None
        shut_down_workers(iterator)

    def _start(self) -> Any:
        """Make a torch iterator over the batches from the current position on."""
        size = self._micro_batch_size
        loader = DataLoader(
            self._dataset,
            batch_sampler=(
                list(range(start, start + size)) for start in itertools.count(self.position, size)
            ),
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch_factor if self._num_workers else None,
            pin_memory=self._pin_memory,
            collate_fn=_as_it_is,
            worker_init_fn=WorkerInit(os.getpid()),
            multiprocessing_context=START_METHOD if self._num_workers else None,
            # Without its own, torch would draw the workers' seed from the global stream.
            generator=torch.Generator(),
        )
        with starting_workers():
            iterator = iter(loader)
        own_workers(iterator)
        return iterator

    def _identity(self) -> dict[str, int | bool]:
        return {
            "num_samples": self._order.num_samples,
            "epoch_samples": self._order.epoch_samples,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
        }


class _Positions(Dataset[Any]):
    """Reads the source by position instead of index; lives in the loader's workers."""

    def __init__(self, source: SampleSource, order: SampleOrder) -> None:
        self.source = source
        self._order = order

    def __getitems__(self, positions: list[int]) -> Batch | DataError:
        epochs, indices = self._order.locate(np.array(positions))
        try:
            return self.source.batch(indices.tolist(), epochs.tolist())
        except DataError as error:
            # Handed over as a value: torch would wrap its one line into a worker's traceback.
            return error


def _as_it_is(batch: Any) -> Any:
    return batch
