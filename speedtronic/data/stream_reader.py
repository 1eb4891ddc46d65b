"""Read an iterable or a loader of the user's through its epochs."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from speedtronic.data.collate import first_tensor
from speedtronic.data.generators import generators_in, holds_generator, tell_epoch
from speedtronic.data.indexed_loader import IndexedBatches, is_indexed
from speedtronic.data.resume_method import find_resume_method
from speedtronic.data.seeding import seed_streams, streams_mark
from speedtronic.data.stream_state import from_portable, to_portable
from speedtronic.data.types import Batch
from speedtronic.data.worker_guard import NotYetError, WorkerGuard, make_repeatable
from speedtronic.data.workers import (
    adopt_workers,
    own_workers,
    shut_down_workers,
    starting_workers,
)
from speedtronic.errors import DataError, RestoreError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, between two samples.

    Attributes:
        samples: taken so far, over all epochs.
        epoch: of the last one taken; 0 before the first.
        index: how many of them are of this epoch.
    """

    samples: int = 0
    epoch: int = 0
    index: int = 0


class StreamReader:
    """Reads one object through its epochs, each item under a seed of its own.

    Args:
        source: has `__iter__`; a DataLoader gives batches, all else samples.
        micro_batch_size: samples of a full batch.
        seed: of what is drawn from the global streams in this process.
        beat: called now and then while this takes long.

    Attributes:
        position: after the last item taken.
        takes_batches: whether an item is a batch.
        resumes_by: the method that leads to a position within the data.
        why_by_skipping: what rules out a faster method, for people.
        draws_first: whether an epoch begins with draws that its later items do not need, as of an
            order; a resume begins with them too. None while that cannot be told.
    """

    def __init__(
        self, source: Any, micro_batch_size: int, seed: int, beat: Callable[[], None]
    ) -> None:
        self.position = StreamPosition()
        self.takes_batches = isinstance(source, DataLoader)
        self._source = source
        self._micro_batch_size = micro_batch_size
        self._seed = seed
        self._iterator: Any = None
        self._told_of_short = False
        self._guard: WorkerGuard | None = None
        self.draws_first: bool | None = False
        self._num_taken = 0
        self._checked = False
        self.resumes_by, self.why_by_skipping = find_resume_method(source)
        self._is_indexed = self.takes_batches and is_indexed(source)
        if self.takes_batches:
            make_repeatable(source)
            if self._is_indexed:
                self._source = IndexedBatches(source, seed, micro_batch_size, beat)
            else:
                self._guard = WorkerGuard(source) if self.resumes_by == "state" else None
                adopt_workers(source)

    def start_at(self, position: StreamPosition) -> None:
        """Set the position, and tell the object its epoch."""
        self.position = position
        self._tell_epoch()

    def read_item(self) -> Any:
        """Read the next sample, or the next full batch; begin the next epoch where one ends."""
        while True:
            index = self.position.index
            if self._iterator is None:
                # An epoch begins under its first seed, also where a resume lets it begin later.
                seed_streams(self._seed, self.position.epoch, 0)
                with starting_workers():
                    self._iterator = iter(self._source)
                own_workers(self._iterator)
                index = 0 if self.draws_first else index
            seed_streams(self._seed, self.position.epoch, index)
            try:
                item = self._next()
            except StopIteration:
                self._end_epoch()
                continue
            if self.takes_batches and not self._is_full(item):
                continue
            size = self._micro_batch_size if self.takes_batches else 1
            at = self.position
            self.position = StreamPosition(at.samples + size, at.epoch, at.index + size)
            return item

    def _next(self) -> Any:
        """Return the next item; compare whether the first two of an epoch drew random numbers."""
        looks = self.position.index == 0 or self._num_taken == 1
        if self.resumes_by != "state" or self._is_indexed or not looks:
            return next(self._iterator)
        mark = streams_mark()
        item = next(self._iterator)
        drew = streams_mark() != mark
        if self.position.index == 0:
            self._num_taken, self.draws_first = 1, None if drew else False
        else:
            self._num_taken = 2
            self.draws_first = self.draws_first is None and not drew
        return item

    def load_source_state(self, state: Any) -> None:
        """Load into the object its own state, given in portable form.

        Raises:
            RestoreError: it refused.
        """
        state = from_portable(state)
        try:
            self._source.load_state_dict(state)
        except Exception as error:
            raise RestoreError(
                f"data.dataset: load_state_dict raised {type(error).__name__}: {error}"
            ) from error
        if self._guard is not None:
            self._guard.loaded(state)

    def source_state(self) -> Any:
        """Return the object's own state in portable form; None if it has no reliable one.

        Raises:
            NotYetError: it has one, which is not complete here.
        """
        if self.resumes_by != "state":
            return None
        state = self._source.state_dict()
        if self._guard is not None and not self._guard.allows(state):
            return None
        if self.draws_first is None:
            raise NotYetError
        self._warn_of_lost_generators(state)
        return to_portable(state)

    def close(self) -> None:
        """End the workers."""
        if self._is_indexed:
            self._source.close()
        shut_down_workers(self._iterator)
        shut_down_workers(getattr(self._source, "_iterator", None))
        self._iterator = None

    def _warn_of_lost_generators(self, state: Any) -> None:
        if self._checked or self._is_indexed:
            return
        self._checked = True
        data = self._source.dataset if self.takes_batches else self._source
        held = generators_in(data)
        if held and not holds_generator(state):
            logger.warning(
                "data.dataset: %s is a generator, and state_dict() of the %s does not seem to hold "
                "its state; put it in, or what it draws will differ after a resume",
                ", ".join(held),
                type(data).__name__,
            )

    def _tell_epoch(self) -> None:
        tell_epoch(self._source, self.position.epoch)

    def _end_epoch(self) -> None:
        epoch = self.position.epoch
        if self.position.index == 0:
            raise DataError(
                f"data.dataset: epoch {epoch} of a {type(self._source).__name__} ended before the "
                "first sample; each iter() of it has to begin anew, which a generator does not"
            )
        self._iterator = None
        if self._guard is not None:
            self._guard.began()
        self.position = StreamPosition(self.position.samples, epoch + 1)
        self._tell_epoch()

    def _is_full(self, batch: Batch) -> bool:
        """Whether a ready batch has the right size; a shorter one later in an epoch is left out."""
        tensor = first_tensor(batch)
        found, expected = 0 if tensor is None else len(tensor), self._micro_batch_size
        if found == expected:
            return True
        if found > expected or self.position.index == 0:
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
