"""A chunk in a process of its own: the parent's side.

Whatever kills the training process (SIGKILL, out of memory, a segfault) becomes an exception here,
with the signal named. The process stays warm between chunks; after any failure it is killed,
reaped and started anew.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from speedtronic.checkpoint import Pointer
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import WorkerDied, WorkerError, WorkerFailed, WorkerHung
from speedtronic.plan import Chunk
from speedtronic.shutdown import forward_signals
from speedtronic.worker.hang_watch import Watch, cpu_s
from speedtronic.worker.poison import Suspicion
from speedtronic.worker.process import Child
from speedtronic.worker.standby import STANDBY

STOP_GRACE_S = 20.0  # Prefect sends SIGKILL 30 s after it asked a flow to end
POLL_S = 0.05

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChunkResult:
    """How far a chunk got.

    Attributes:
        pointer: the newest checkpoint; None before the first.
        trained_to: the step reached; beyond `pointer.step` when it is off the interval.
        samples: consumed since the run began.
        tokens: trained on since the run began.
        loss: mean loss of the last update; None before the first one.
        val_loss: the newest validation loss; None before the first.
        notes: what differs from when the run was begun or last saved, for people.
        saves: checkpoints committed.
        save_stall_s: seconds for which these held training, in all.
        save_durable_s: seconds until one was durable, at most.
    """

    pointer: Pointer | None
    trained_to: int
    samples: int
    tokens: int
    loss: float | None
    val_loss: float | None
    notes: list[str]
    saves: int = 0
    save_stall_s: float = 0.0
    save_durable_s: float = 0.0


class ChunkWorker:
    """A training process that is given one chunk after another; a context manager.

    Args:
        config: of the run; it is always resumed.
        allow_changes: keys that may differ from the run's checkpoint.
        on_log: given each log line of the child as (level, logger's name, message); by default it
            is logged here under the same name.
        on_event: told of each other event of the child as it comes: see `chunk_process`.

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
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._config = config
        self._allow_changes = list(allow_changes)
        self._target = target
        self._on_log = on_log or _log_here
        self._on_event = on_event
        self._child: Child | None = None
        self._entered = ExitStack()
        self._suspicion = Suspicion(config.chunk.quarantine_after)
        self.failed_in_a_row = 0
        self.restores: list[int] = []

    @property
    def pid(self) -> int | None:
        """The process at work or kept warm; None when there is none."""
        return self._child.pid if self._child else None

    def restore(self) -> Pointer | None:
        """Load the newest good checkpoint, mending the store on the way.

        Raises:
            WorkerError: as `train`.
        """
        return self._attempt({"command": "restore"}).pointer

    def train(self, chunk: Chunk, pointer: Pointer | None) -> ChunkResult:
        """Advance to `chunk.target` from `pointer`, or from the store where that differs.

        Raises:
            WorkerDied: the process ended; the message names the signal or exit code.
            WorkerHung: no sign of life for `chunk.hang_timeout_s`; the process was killed.
            WorkerFailed: the process reported an exception.
        """
        handed = pointer and pointer.model_dump()
        return self._attempt({"command": "train", "target": chunk.target, "pointer": handed})

    def close(self) -> None:
        """Ask the process to stop, wait for it a while, then kill it; returns once it is reaped."""
        child = self._child
        if child is not None and not child.has_ended and not child.ask_to_stop(STOP_GRACE_S):
            logger.warning("worker %d did not stop in %.0f s", child.pid, STOP_GRACE_S)
        self._discard()

    def kill(self) -> None:
        """End the process at once; it is reaped on return."""
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

    def _attempt(self, request: dict[str, Any]) -> ChunkResult:
        self.failed_in_a_row += 1  # until a checkpoint or the answer comes
        try:
            child = self._ready_child()
            child.send(request | {"reject": self._suspicion.verdict()})
            answer = self._await_answer(child)
        except (WorkerDied, WorkerHung, WorkerFailed) as error:
            self._discard()
            if _is_death(error):
                self._suspicion.died(str(error))
            raise
        self.failed_in_a_row = 0
        self._suspicion.committed()
        return ChunkResult(
            pointer=answer["pointer"] and Pointer.model_validate(answer["pointer"]),
            trained_to=answer["step"],
            samples=answer["samples"],
            tokens=answer["tokens"],
            loss=answer["loss"],
            val_loss=answer["val_loss"],
            notes=answer["notes"],
            saves=answer["saves"],
            save_stall_s=answer["save_stall_s"],
            save_durable_s=answer["save_durable_s"],
        )

    def _ready_child(self) -> Child:
        if self._child is None or self._child.has_ended:
            self._discard()
            self._child = Child(from_standby=self._config.chunk.standby)
            first = {"config": self._config.to_dict(), "allow_changes": self._allow_changes}
            self._child.send({**first, "target": self._target})
        return self._child

    def _await_answer(self, child: Child) -> dict[str, Any]:
        """The `done` event."""
        timeout_s = self._config.chunk.hang_timeout_s
        watch = Watch(timeout_s, lambda: cpu_s(child.pid))
        while True:
            ended = child.has_ended  # asked first, so that the last of its events are read too
            while events := child.events(0 if ended else POLL_S):
                for event in events:
                    if event["event"] == "done":
                        return event
                    self._take(event)
                    watch.take(event)
            if ended:
                raise child.death()
            if watch.is_hung():
                raise WorkerHung(
                    f"worker {child.pid} made no progress for {timeout_s:.0f} s (last step: "
                    f"{watch.step}; it was {watch.doing}); killed. chunk.hang_timeout_s sets the "
                    "limit"
                )

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "log":
            self._on_log(event["level"], event["name"], event["message"])
        elif event["event"] == "failed":
            logger.debug("%s", event["traceback"])
            raise WorkerFailed(
                f"{event['kind']}: {event['message']}",
                kind=event["kind"],
                retryable=event["retryable"],
            )
        elif event["event"] == "saved":
            self.failed_in_a_row = 0
            self._suspicion.committed()
        elif event["event"] == "restored":
            self.restores.append(event["step"])
            self._suspicion.loaded(event["step"])
            if self._config.chunk.standby:  # not before, so as not to slow this start down
                STANDBY.begin()
        if event["event"] != "log" and self._on_event is not None:
            self._on_event(event)

    def _discard(self) -> None:
        if self._child is not None:
            self._child.discard()
        self._child = None


def _log_here(level: int, name: str, message: str) -> None:
    logging.getLogger(name).log(level, "%s", message)


def _is_death(error: WorkerError) -> bool:
    """Whether the attempt ended as what it had loaded may have made it end."""
    if isinstance(error, WorkerDied):
        return not error.on_request
    return not isinstance(error, WorkerFailed) or error.retryable
