"""Trains chunks in a child process: the parent's side.

Whatever kills the training process (SIGKILL, out of memory, a segfault) becomes an exception here
that names the signal. The process is kept between chunks; after any failure it is killed, reaped
and started anew.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Self

from speedtronic.checkpoint import Pointer
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import WorkerDied, WorkerError, WorkerFailed, WorkerHung
from speedtronic.plan import Chunk
from speedtronic.shutdown import forward_signals
from speedtronic.worker.hang_watch import HangWatch, cpu_s
from speedtronic.worker.messages import (
    Done,
    Event,
    Failed,
    LogLine,
    Request,
    Restore,
    Restored,
    Saved,
    Setup,
    Train,
    parse_event,
)
from speedtronic.worker.poison import PoisonCounter
from speedtronic.worker.process import ChildProcess
from speedtronic.worker.standby import STANDBY

STOP_GRACE_S = 20.0  # Prefect sends SIGKILL 30 s after it asked a flow to end
POLL_S = 0.05

logger = logging.getLogger(__name__)


class ChunkWorker:
    """Trains one chunk after another in a child process; a context manager.

    Args:
        config: of the run; it is always resumed.
        allow_changes: keys that may differ from the run's checkpoint.
        on_log: given each log line of the child as (level, logger's name, message); by default it
            is logged here under the same name.
        on_event: given each other event of the child as it comes; see `worker.messages`.

    Attributes:
        failed_in_a_row: attempts that ended without a new checkpoint since the last one.
        restores: the steps at which a checkpoint, or a fresh start, was loaded, in order.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        *,
        allow_changes: Sequence[str] = (),
        target: int | None = None,
        on_log: Callable[[int, str, str], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._config = config
        self._setup = Setup(config.to_dict(), list(allow_changes), target)
        self._on_log = on_log or _log_here
        self._on_event = on_event
        self._child: ChildProcess | None = None
        self._entered = ExitStack()
        self._poison = PoisonCounter(config.chunk.quarantine_after)
        self.failed_in_a_row = 0
        self.restores: list[int] = []

    @property
    def pid(self) -> int | None:
        """The process that trains or waits for the next chunk; None when there is none."""
        return self._child.pid if self._child else None

    def restore(self) -> Pointer | None:
        """Load the newest good checkpoint and repair the store on the way.

        Raises:
            WorkerError: as `train`.
        """
        return self._attempt(Restore(self._poison.rejection())).pointer

    def train(self, chunk: Chunk, pointer: Pointer | None) -> Done:
        """Advance to `chunk.target` from `pointer`, or from the store if it has another.

        Raises:
            WorkerDied: the process ended; the message names the signal or exit code.
            WorkerHung: no sign of life for `chunk.hang_timeout_s`; the process was killed.
            WorkerFailed: the process reported an exception.
        """
        return self._attempt(Train(chunk.target, pointer, self._poison.rejection()))

    def close(self) -> None:
        """Stop the process, by SIGKILL if it does not end in time; it is reaped on return."""
        child = self._child
        if child is not None and not child.has_ended and not child.ask_to_stop(STOP_GRACE_S):
            logger.warning("worker %d did not stop in %.0f s", child.pid, STOP_GRACE_S)
        self._discard()

    def kill(self) -> None:
        """Kill the process; it is reaped on return."""
        self._discard()

    def __enter__(self) -> Self:
        self._entered.enter_context(forward_signals(lambda: self.pid))
        self._entered.enter_context(STANDBY.held())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._entered.close()

    def _attempt(self, request: Request) -> Done:
        self.failed_in_a_row += 1  # until a checkpoint or the answer comes
        try:
            child = self._ready_child()
            child.send(request)
            answer = self._await_answer(child)
        except (WorkerDied, WorkerHung, WorkerFailed) as error:
            self._discard()
            if _is_death(error):
                self._poison.died(str(error))
            raise
        self.failed_in_a_row = 0
        self._poison.committed()
        return answer

    def _ready_child(self) -> ChildProcess:
        if self._child is None or self._child.has_ended:
            self._discard()
            self._child = ChildProcess(
                "speedtronic.worker.chunk_main", from_standby=self._config.chunk.standby
            )
            self._child.send(self._setup)
        return self._child

    def _await_answer(self, child: ChildProcess) -> Done:
        timeout_s = self._config.chunk.hang_timeout_s
        watch = HangWatch(timeout_s, lambda: cpu_s(child.pid))
        while True:
            ended = child.has_ended  # before reading, so that its last events are read too
            while lines := child.lines(0 if ended else POLL_S):
                for line in lines:
                    event = parse_event(line)
                    if isinstance(event, Done):
                        return event
                    self._on_child_event(event)
                    watch.on_event(event)
            if ended:
                raise child.death()
            if watch.is_hung():
                raise WorkerHung(
                    f"worker {child.pid} made no progress for {timeout_s:.0f} s (last step: "
                    f"{watch.step}; it was {watch.doing}); killed. chunk.hang_timeout_s sets the "
                    "limit"
                )

    def _on_child_event(self, event: Event) -> None:
        match event:
            case LogLine():
                self._on_log(event.level, event.name, event.message)
                return
            case Failed():
                logger.debug("%s", event.traceback)
                message = f"{event.kind}: {event.message}"
                raise WorkerFailed(message, kind=event.kind, retryable=event.retryable)
            case Saved():
                self.failed_in_a_row = 0
                self._poison.committed()
            case Restored():
                self.restores.append(event.step)
                self._poison.loaded(event.step)
                if self._config.chunk.standby:  # not before, so as not to slow this start down
                    STANDBY.begin()
        if self._on_event is not None:
            self._on_event(event)

    def _discard(self) -> None:
        if self._child is not None:
            self._child.discard()
        self._child = None


def _log_here(level: int, name: str, message: str) -> None:
    logging.getLogger(name).log(level, "%s", message)


def _is_death(error: WorkerError) -> bool:
    """Return whether the checkpoint that the attempt had loaded may have ended it."""
    if isinstance(error, WorkerDied):
        return not error.on_request
    return not isinstance(error, WorkerFailed) or error.retryable
