"""Makes Prefect tasks that are retried as the run is configured, and reports their events."""

from collections.abc import Callable
from typing import Any

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import RunLockedError, WorkerFailed
from speedtronic.flows.artifacts import RunView
from speedtronic.flows.events import RunEvents
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.messages import Event, Restored, Saved, StepReached


class Attempts:
    """Turns the steps of a flow into tasks that Prefect retries.

    Args:
        settings: of the run.
        events: told of retries, saves and what was quarantined.
        view: told of steps.
    """

    def __init__(self, settings: SpeedtronicConfig, events: RunEvents, view: RunView) -> None:
        self._settings = settings
        self._events = events
        self._view = view

    def of(self, attempt: Any, name: str, worker: ChunkWorker, *, saves: int) -> Callable[..., Any]:
        """Return the task, retried until `chunk.retries` retries in a row gave no new checkpoint.

        Prefect wants a number: every save can be preceded by that many failures, and be followed
        by one more before it is reported.

        Args:
            attempt: the task.
            name: of the task run.
            worker: that it uses.
            saves: how many checkpoints are due in it.
        """
        retries = self._settings.chunk.retries

        def worth_retrying(task: Any, task_run: Any, state: Any) -> bool:
            error = state.data.exception if hasattr(state.data, "exception") else state.data
            if isinstance(error, WorkerFailed) and _is_final(error):
                return False
            if worker.failed_in_a_row > retries:
                return False
            self._events.chunk_retried(name, task_run.run_count, str(error))
            return True

        retried: Callable[..., Any] = attempt.with_options(
            task_run_name=name,
            retries=retries + saves * (retries + 1),
            retry_delay_seconds=self._settings.chunk.retry_delay_s,
            retry_condition_fn=worth_retrying,
        )
        return retried

    def on_event(self, event: Event) -> None:
        """Pass an event of the worker's process on to Prefect."""
        match event:
            case StepReached():
                self._view.step_reached(event.step)
            case Saved():
                self._events.checkpoint_saved(event.step)
            case Restored():  # which may have moved damaged checkpoints
                self._events.look_for_quarantined()


def _is_final(error: WorkerFailed) -> bool:
    """Return whether no retry can help. A run that holds the lock may go on for days."""
    return not error.retryable or error.kind == RunLockedError.__name__
