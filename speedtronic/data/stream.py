"""Data that only come one after another: iterable datasets, and loaders of ready batches."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from speedtronic.data.collate import collate, first_tensor
from speedtronic.data.fingerprint import fingerprint
from speedtronic.data.portable import from_portable, to_portable
from speedtronic.data.randomness import seed_streams, streams_kept
from speedtronic.data.sample import Batch
from speedtronic.data.workers import adopt_workers, shut_down_workers, starting_workers
from speedtronic.errors import DataError, RestoreError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Place:
    """A place in a stream, between two samples.

    Attributes:
        samples: taken so far, over all epochs.
        epoch: of the last one taken; 0 before the first.
        index: how many of them are of this epoch.
    """

    samples: int = 0
    epoch: int = 0
    index: int = 0


class StreamLoader:
    """Endless micro batches from an object that is iterated, epoch after epoch.

    It resumes by the object's `state_dict` and `load_state_dict` if it has both. Lacking them, it
    takes a fresh object and skips: to the place in the epoch if there is `set_epoch`, else from the
    very beginning, for then only the number of its iterations can tell the object the epoch.

    Args:
        make: gives the user's object as the factory returns it. A used one cannot be wound back, so
            every new start begins with a new one.
        micro_batch_size: samples a batch.
        seed: of what the object draws from the global streams in this process.

    Attributes:
        position: samples handed to the trainer so far, over all epochs.
    """

    def __init__(self, make: Callable[[], Any], *, micro_batch_size: int, seed: int) -> None:
        self.position = 0
        self._make = make
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._place = Place()
        # Where the object last loaded a state, with that state; a position where it began.
        self._saved: tuple[Place, Any] = (Place(), None)
        self._begun = 0
        self._exact = True
        self._fresh: Any = make()
        self._type = type(self._fresh).__qualname__
        self._reader: _Reader | None = None

    def next_batch(self) -> Batch:
        """The next micro batch; the global random streams are left alone.

        Raises:
            DataError: the data ended before the first sample of an epoch, or do not make a batch;
                the position stays, safe to call again.
            RestoreError: the place to go on at is not there any more.
        """
        try:
            with streams_kept():
                reader = self._start()
                if reader.takes_batches:
                    batch = reader.take()
                else:
                    batch = collate([reader.take() for _ in range(self._micro_batch_size)])
        except BaseException:
            # The object is now ahead of the position: the next call has to start over.
            self.close()
            raise
        self._place = reader.place
        self.position = reader.place.samples
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The place as plain numbers, and as `source` the object's own state if it has one.

        Raises:
            DataError: that state holds something that a checkpoint cannot.
        """
        place, source = self._saved
        if place != self._place:
            with streams_kept():
                source = self._start().source_state()
        return {
            "samples": self.position,
            "epoch": self._place.epoch,
            "index": self._place.index,
            "begun": self._begun,
            "seed": self._seed,
            "source": source,
        }

    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None:
        """Go on at the saved place; an object that stands exactly there is kept.

        With `any_order`, the position of another kind of data is where this stream begins.

        Raises:
            RestoreError: the state is of another kind of data or another seed; nothing was changed.
        """
        is_stream = "index" in state
        if not any_order and not (is_stream and state["seed"] == self._seed):
            saved = f"seed {state['seed']}" if is_stream else "data in an order of ours"
            raise RestoreError(
                f"data order differs from the checkpoint's: saved {saved}, now a stream with seed "
                f"{self._seed}; restore the data section of the configuration, or start a fresh run"
            )
        self._exact = not any_order
        place = Place(state["samples"], state["epoch"], state["index"]) if is_stream else None
        if place is not None and place == self._place:
            return
        self.close()
        if place is None:
            place, state = Place(state["samples"]), {"begun": state["samples"]}
        self._place, self.position, self._begun = place, place.samples, state["begun"]
        self._saved = (place, state.get("source"))

    def fingerprint(self) -> str:
        """Of the type's name: nothing can be seen without taking it."""
        return fingerprint(kind="stream", type=self._type)

    def close(self) -> None:
        """Let go of the object and end its workers; the next batch makes a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _start(self) -> "_Reader":
        """A reader that stands at the current place."""
        if self._reader is None:
            source, self._fresh = self._fresh, None
            self._reader = self._wind(self._make() if source is None else source)
        return self._reader

    def _wind(self, source: Any) -> "_Reader":
        goal = self._place
        saved, state = self._saved
        if state is None or not _is_stateful(source):
            by_epoch = hasattr(source, "set_epoch")
            saved = Place(goal.samples - goal.index, goal.epoch) if by_epoch else Place(self._begun)
            state = None
        reader = _Reader(source, self._micro_batch_size, self._seed, saved)
        self._reader = reader  # so that a failure below closes it
        if state is not None:
            reader.load(from_portable(state))
        elif skipped := goal.samples - saved.samples:
            logger.warning(
                "data.dataset: skipping %d samples of a %s to go on at sample %d; with state_dict "
                "and load_state_dict it would go on at once",
                skipped,
                self._type,
                goal.samples,
            )
        while reader.place.samples < goal.samples:
            reader.take()
        if reader.place != goal and self._exact:
            raise RestoreError(
                f"data.dataset: the {self._type} is not the one of the checkpoint: expected "
                f"{goal}, found {reader.place}; restore the data, or start a fresh run"
            )
        return reader


class _Reader:
    """One object on its way through the epochs, each item taken under a seed of its own."""

    def __init__(self, source: Any, micro_batch_size: int, seed: int, place: Place) -> None:
        self.place = place
        self.takes_batches = isinstance(source, DataLoader)
        self._source = source
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._iterator: Any = None
        self._told_of_short = False
        if self.takes_batches:
            adopt_workers(source)
        self._set_epoch()

    def take(self) -> Any:
        """The next sample, or the next full batch; starts the next epoch when one is over."""
        while True:
            self._seed_streams()
            if self._iterator is None:
                with starting_workers():
                    self._iterator = iter(self._source)
                self._seed_streams()
            try:
                item = next(self._iterator)
            except StopIteration:
                self._end_epoch()
                continue
            if self.takes_batches and not self._is_full(item):
                continue
            size = self._micro_batch_size if self.takes_batches else 1
            place = self.place
            self.place = Place(place.samples + size, place.epoch, place.index + size)
            return item

    def load(self, state: Any) -> None:
        """Let the object take up its own state.

        Raises:
            RestoreError: it refused.
        """
        try:
            self._source.load_state_dict(state)
        except Exception as error:
            raise RestoreError(
                f"data.dataset: load_state_dict raised {type(error).__name__}: {error}"
            ) from error

    def source_state(self) -> Any:
        """The object's own state in portable form; None if it has none."""
        return to_portable(self._source.state_dict()) if _is_stateful(self._source) else None

    def close(self) -> None:
        shut_down_workers(self._iterator)
        self._iterator = None

    def _seed_streams(self) -> None:
        seed_streams(self._seed, self.place.epoch, self.place.index)

    def _set_epoch(self) -> None:
        parts = [self._source]
        if self.takes_batches:
            parts += [self._source.dataset, self._source.sampler]
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.place.epoch)

    def _end_epoch(self) -> None:
        epoch = self.place.epoch
        if self.place.index == 0:
            raise DataError(
                f"data.dataset: epoch {epoch} of a {type(self._source).__name__} ended before the "
                "first sample; each iter() of it has to begin anew, which a generator does not"
            )
        self._iterator = None
        self.place = Place(self.place.samples, epoch + 1)
        self._set_epoch()

    def _is_full(self, batch: Batch) -> bool:
        """Whether a ready batch has the right size; a shorter one later in an epoch is left out."""
        tensor = first_tensor(batch)
        found, expected = 0 if tensor is None else len(tensor), self._micro_batch_size
        if found == expected:
            return True
        if found > expected or self.place.index == 0:
            raise DataError(
                f"data.dataset: the loader gave a batch of {found} samples, expected "
                f"{expected}, which is data.micro_batch_size; make its batch_size the same"
            )
        if not self._told_of_short:
            self._told_of_short = True
            logger.warning(
                "data.dataset: left out a batch of %d samples, shorter than data.micro_batch_size, "
                "%d; so will be all such batches (drop_last=True in the loader does the same)",
                found,
                expected,
            )
        return False


def _is_stateful(source: Any) -> bool:
    """Whether `source` can go on by a state of its own, to the sample, as often as it has to."""
    parts = [source]
    if isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset):
        # Over a dataset without state, torchdata's loader skips, and the state that it gives after
        # that counts what it skipped twice (0.11).
        parts.append(source.dataset)
    return all(hasattr(x, "state_dict") and hasattr(x, "load_state_dict") for x in parts)
