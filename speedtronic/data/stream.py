"""Read data that can only be iterated: iterable datasets, and loaders of ready batches."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from speedtronic.data.collate import collate
from speedtronic.data.fingerprint import fingerprint
from speedtronic.data.seeding import streams_kept
from speedtronic.data.stream_reader import StreamPosition, StreamReader
from speedtronic.data.types import Batch
from speedtronic.data.worker_guard import NotYetError
from speedtronic.errors import RestoreError
from speedtronic.liveness import report_progress

logger = logging.getLogger(__name__)

TELL_EVERY_S = 10.0


@dataclass(frozen=True)
class SavedSource:
    """Holds the object's own state, in portable form, and the position where it was taken.

    Attributes:
        draws_first: `StreamReader.draws_first` there.
    """

    position: StreamPosition
    source: Any
    draws_first: bool = False


class StreamLoader:
    """Yields micro batches without end from an object that is iterated, epoch after epoch.

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
        self._stream_position = self._marked = StreamPosition()
        self._saved = SavedSource(StreamPosition(), None)
        self._begun = 0
        self._searched = 0
        self._exact = True
        self._fresh: Any = make()
        self._type = type(self._fresh).__qualname__
        self._reader: StreamReader | None = None

    def next_batch(self) -> Batch:
        """Return the next micro batch; the global random streams are left alone.

        Raises:
            DataError: the data ended before the first sample of an epoch, or do not make a batch;
                the position stays, safe to call again.
            RestoreError: the place to go on at is not there any more.
        """
        try:
            with streams_kept():
                reader = self._start()
                if reader.takes_batches:
                    batch = reader.read_item()
                else:
                    batch = collate([self._take(reader, n) for n in range(self._micro_batch_size)])
            self._stream_position = reader.position
            self.position = reader.position.samples
        except BaseException:
            # The object is now ahead of the position: the next call has to start over.
            self.close()
            raise
        return batch

    def _take(self, reader: StreamReader, number: int) -> Any:
        report_progress("reading samples of a batch", number + 1, self._micro_batch_size)
        return reader.read_item()

    def mark(self) -> None:
        """Remember the position for `back_to_mark`."""
        self._marked = self._stream_position

    def back_to_mark(self) -> None:
        """Rewind to the mark: a new object gives the batches since then again."""
        if self._stream_position != self._marked:
            self.close()
            self._stream_position, self.position = self._marked, self._marked.samples

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain numbers, and as `source` the object's state if it has one.

        `source_at` is where that state was taken, if not here: a resume goes on from there. So
        it is when the object was let go of in the middle of a batch.

        Raises:
            DataError: that state holds something that a checkpoint cannot.
        """
        saved = self._saved
        if saved.position != self._stream_position and self._reader is not None:
            with streams_kept(), suppress(NotYetError):
                reader = self._reader
                saved = SavedSource(
                    self._stream_position, reader.source_state(), bool(reader.draws_first)
                )
                self._saved = saved
        state = {
            "samples": self.position,
            "epoch": self._stream_position.epoch,
            "index": self._stream_position.index,
            "begun": self._begun,
            "seed": self._seed,
            "source": saved.source,
        }
        if saved.position != self._stream_position and saved.source is not None:
            state["source_at"] = [
                saved.position.samples,
                saved.position.epoch,
                saved.position.index,
            ]
        if saved.draws_first:
            state["source_draws_first"] = True
        return state

    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None:
        """Continue at the saved position; an object that is exactly there is kept.

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
        place = (
            StreamPosition(state["samples"], state["epoch"], state["index"]) if is_stream else None
        )
        if place is not None and place == self._stream_position:
            return
        self.close()
        if place is None:
            place, state = StreamPosition(state["samples"]), {"begun": state["samples"]}
        self._stream_position, self.position, self._begun = place, place.samples, state["begun"]
        at, draws_first = state.get("source_at"), state.get("source_draws_first", False)
        self._saved = SavedSource(
            StreamPosition(*at) if at else place, state.get("source"), draws_first
        )

    def fingerprint(self) -> str:
        """Return a fingerprint of the type's name; more cannot be seen without reading the data."""
        return fingerprint(kind="stream", type=self._type)

    def close(self) -> None:
        """Release the object and end its workers; the next batch makes a new one."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _start(self) -> StreamReader:
        """Return a reader at the current position, a new one if there is none."""
        if self._reader is None:
            source, self._fresh = self._fresh, None
            try:
                self._reader = self._wind(self._make() if source is None else source)
            except BaseException:
                self.close()
                raise
        return self._reader

    def _wind(self, source: Any) -> StreamReader:
        """Make a reader of `source` and bring it to the current position."""
        goal = self._stream_position
        saved, state = self._saved.position, self._saved.source
        reader = StreamReader(source, self._micro_batch_size, self._seed, self._tell_of_search)
        self._reader = reader  # so that a failure below closes it
        if state is None or reader.resumes_by != "state":
            by_epoch = reader.resumes_by == "skipping the epoch"
            saved = (
                StreamPosition(goal.samples - goal.index, goal.epoch)
                if by_epoch
                else StreamPosition(self._begun)
            )
            state = None
        reader.start_at(saved)
        if state is not None:
            reader.load_source_state(state)
            reader.draws_first = self._saved.draws_first
        self._skip(reader, goal)
        if reader.position != goal and self._exact:
            raise RestoreError(
                f"data.dataset: the {self._type} is not the one of the checkpoint: expected "
                f"{goal}, found {reader.position}; restore the data, or start a fresh run"
            )
        return reader

    def _tell_of_search(self) -> None:
        self._searched += 1
        report_progress("finding the place in the order, steps", self._searched)

    def _skip(self, reader: StreamReader, goal: StreamPosition) -> None:
        """Read and drop what lies between the reader's position and `goal`; log how much."""
        begun, started = reader.position.samples, time.monotonic()
        if total := goal.samples - begun:
            logger.warning(
                "data.dataset: skipping %d samples of a %s to go on at sample %d; %s",
                total,
                self._type,
                goal.samples,
                reader.why_by_skipping,
            )
        told = started
        while reader.position.samples < goal.samples:
            report_progress("skipping samples", reader.position.samples, goal.samples)
            reader.read_item()
            if (now := time.monotonic()) - told >= TELL_EVERY_S:
                told, done = now, reader.position.samples - begun
                logger.info(
                    "data.dataset: skipped %d of %d samples; about %.0f s to go",
                    done,
                    total,
                    (total - done) * (now - started) / done,
                )
