"""A run's tasks: each retried as the run says, and what happens in them told to Prefect."""

from collections.abc import Callable
from typing import Any

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import RunLockedError, WorkerFailed
from speedtronic.flows.artifacts import RunView
from speedtronic.flows.events import RunEvents
from speedtronic.worker.chunk import ChunkWorker


class Attempts:
    """Makes tasks of attempts.

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
        """The task, retried while `chunk.retries` attempts in a row have brought no new checkpoint.

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

    def on_event(self, event: dict[str, Any]) -> None:
        """Told by the worker of what happens in its process."""
        if event["event"] == "step":
            self._view.step_reached(event["step"])
        elif event["event"] == "saved":
            self._events.checkpoint_saved(event["step"])
        elif event["event"] == "restored":  # mending the store on the way
            self._events.look_for_quarantined()


def _is_final(error: WorkerFailed) -> bool:
    """Whether a person is needed. Whoever holds the lock is alive, and may go on for days."""
    return not error.retryable or error.kind == RunLockedError.__name__
