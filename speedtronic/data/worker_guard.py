"""Decide whether a run can resume from the state of a loader with workers over an iterable."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from speedtronic.data.generators import listeners_in
from speedtronic.data.seeding import streams_mark

logger = logging.getLogger(__name__)


class NotYetError(Exception):
    """The state is not complete here; some samples on it will be."""


class WorkerGuard:
    """Decides where the state of a torchdata loader with workers can be relied on.

    After a load, a worker that has not given a batch yet reports a state from before the load, so
    the state is complete only when each has. And no state holds the random streams of workers: if
    they draw, only skipping leads to the same numbers.

    Args:
        loader: its `collate_fn` and `worker_init_fn` are wrapped, to watch in the workers.
    """

    def __init__(self, loader: Any) -> None:
        self._num_workers = loader.num_workers
        self._type = type(loader).__name__
        self._loaded_at: int | None = None
        self._warned = False
        self._watch: _Watch | None = None
        if self._num_workers:
            self._watch = _Watch(loader.collate_fn, loader.worker_init_fn)
            loader.collate_fn = self._watch
            loader.worker_init_fn = self._watch.start

    def loaded(self, state: dict[str, Any]) -> None:
        """Record that the next iterator continues from `state`."""
        self._loaded_at = _snapshot_step(state)

    def began(self) -> None:
        """Record that the next iterator begins an epoch."""
        self._loaded_at = None

    def allows(self, state: dict[str, Any]) -> bool:
        """Whether resuming from `state` is exact; if not, it never will be.

        Raises:
            NotYetError: the state lacks what some workers have not reported.
        """
        if self._watch is None:
            return True
        if self._watch.has_drawn():
            if not self._warned:
                self._warned = True
                logger.warning(
                    "data.dataset: the workers of the %s draw from the global random streams, "
                    "which its state does not hold; resumes will skip from the beginning instead. "
                    "Draw from a generator made anew for each item, or use a map-style dataset",
                    self._type,
                )
            return False
        step = _snapshot_step(state)
        if None not in (step, self._loaded_at) and step - self._loaded_at < self._num_workers:
            raise NotYetError
        return True


def _snapshot_step(state: dict[str, Any]) -> Any:
    return state.get("_snapshot", {}).get("_snapshot_step")


class _Watch:
    """Wraps `collate_fn` and records whether a worker drew random numbers while it fetched."""

    def __init__(self, collate: Callable[[Any], Any], then: Callable[[int], None] | None) -> None:
        self._collate = collate
        self._then = then
        self._mark: Any = None
        self._drawn = torch.zeros(1, dtype=torch.uint8).share_memory_()

    def start(self, worker_id: int) -> None:
        """Replaces `worker_init_fn`."""
        if self._then is not None:
            self._then(worker_id)
        self._mark = streams_mark()

    def __call__(self, items: Any) -> Any:
        batch = self._collate(items)
        if not self._drawn and streams_mark() != self._mark:
            self._drawn.fill_(1)
        return batch

    def has_drawn(self) -> bool:
        return bool(self._drawn)


def make_repeatable(loader: DataLoader[Any]) -> None:
    """Change the settings of a loader under which its batches depend on time or on a past epoch."""
    if not loader.num_workers:
        return
    if not getattr(loader, "in_order", True):
        logger.warning(
            "data.dataset: in_order=False is left out: batches would come as workers finish them, "
            "another order in each run"
        )
        loader.in_order = True
    if loader.persistent_workers and listeners_in(loader.dataset):
        # Workers that live on have a copy of the dataset, which nothing tells of a new epoch.
        loader.__dict__["persistent_workers"] = False
