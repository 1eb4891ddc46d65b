"""Emits Prefect events about a run, which automations can act on.

    speedtronic.checkpoint.saved        step
    speedtronic.checkpoint.quarantined  file, reason
    speedtronic.chunk.retried           task, attempt, failure
    speedtronic.drill.failed            drill, found, expected

The resource is the run's directory. Prefect adds the flow run and what it belongs to.
"""

from pathlib import Path
from typing import Any

from prefect.events import emit_event

from speedtronic.checkpoint import open_storage
from speedtronic.checkpoint.quarantine import quarantined
from speedtronic.flows.keys import slug


class RunEvents:
    """Emits the events of one run.

    Args:
        run_dir: of the run, as configured.
        checkpoint_dir: of its checkpoints.
    """

    def __init__(self, run_dir: str, checkpoint_dir: str) -> None:
        self._run_dir = run_dir
        self._storage = open_storage(checkpoint_dir)
        self._known = {item.file for item in quarantined(self._storage)}

    def checkpoint_saved(self, step: int) -> None:
        """Emit that the checkpoint of `step` is durable and the pointer names it."""
        emit("speedtronic.checkpoint.saved", self._run_dir, step=step)

    def look_for_quarantined(self) -> None:
        """Emit an event for each file that was moved to quarantine since the last call."""
        for item in quarantined(self._storage):
            if item.file not in self._known:
                self._known.add(item.file)
                emit(
                    "speedtronic.checkpoint.quarantined",
                    self._run_dir,
                    file=item.file,
                    reason=item.reason,
                )

    def chunk_retried(self, task: str, attempt: int, failure: str) -> None:
        """Emit that an attempt failed and another one follows."""
        emit(
            "speedtronic.chunk.retried", self._run_dir, task=task, attempt=attempt, failure=failure
        )


def emit(event: str, run_dir: str, **payload: Any) -> None:
    """Send one event about the run in `run_dir`; returns at once, and loses it without a server."""
    resource = {
        "prefect.resource.id": f"speedtronic.run.{slug(run_dir)}",
        "prefect.resource.name": Path(run_dir).name,
        "speedtronic.run.directory": run_dir,
    }
    emit_event(event=event, resource=resource, payload=payload)
