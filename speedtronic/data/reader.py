"""An object of the user's on its way through the epochs."""

import logging
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from speedtronic.data.collate import first_tensor
from speedtronic.data.portable import from_portable, to_portable
from speedtronic.data.randomness import seed_streams
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


class Reader:
    """One object on its way through the epochs, each item taken under a seed of its own.

    Args:
        source: has `__iter__`; a DataLoader gives batches, all else samples.
        micro_batch_size: samples of a full batch.
        seed: of what is drawn from the global streams in this process.
        place: where the first item comes from.

    Attributes:
        place: after the last item taken.
        takes_batches: whether an item is a batch.
    """

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
        """Let the object take up its own state, in portable form.

        Raises:
            RestoreError: it refused.
        """
        try:
            self._source.load_state_dict(from_portable(state))
        except Exception as error:
            raise RestoreError(
                f"data.dataset: load_state_dict raised {type(error).__name__}: {error}"
            ) from error

    def source_state(self) -> Any:
        """The object's own state in portable form; None if it has none."""
        return to_portable(self._source.state_dict()) if is_stateful(self._source) else None

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


def is_stateful(source: Any) -> bool:
    """Whether `source` can go on by a state of its own, to the sample, as often as it has to."""
    parts = [source]
    if isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset):
        # Over a dataset without state, torchdata's loader skips, and the state that it gives after
        # that counts what it skipped twice (0.11).
        parts.append(source.dataset)
    return all(hasattr(x, "state_dict") and hasattr(x, "load_state_dict") for x in parts)
