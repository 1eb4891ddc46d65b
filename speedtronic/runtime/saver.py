"""Checks, commits and announces each save of a run, in that order."""

from collections.abc import Callable, Mapping
from typing import Any

from speedtronic.checkpoint import CheckpointStore, Pointer
from speedtronic.checkpoint.writer import CheckpointWriter, Saved
from speedtronic.liveness import report_idle, report_progress
from speedtronic.training.finite_check import FiniteCheck
from speedtronic.training.metrics import JsonLines

Emit = Callable[[str, dict[str, Any]], None]


class Saver:
    """Commits states of a run as checkpoints, in the background or not.

    Nothing with a NaN in it is committed, and the metrics up to a step are on disk before its
    checkpoint is. A failure is raised by the next call of anything but `close`.

    Args:
        store: gets the checkpoints.
        about: what every checkpoint carries besides the state.
        check_finite: raises if the model in a state holds a NaN or infinity that it should not.
        pointer: the newest checkpoint so far.
        metrics: the file of metrics, if there is one.
        emit: called as (event, fields) in the caller's thread, some time after each commit.
        background: whether training goes on while a save is written.

    Attributes:
        pointer: the newest checkpoint committed, or the one given.
        saves: those announced, oldest first.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        about: Mapping[str, Any],
        check_finite: FiniteCheck,
        pointer: Pointer | None,
        metrics: JsonLines | None,
        emit: Emit,
        background: bool,
    ) -> None:
        self._store = store
        self._about = about
        self._check_finite = check_finite
        self._metrics = metrics
        self._emit = emit
        self._writer = CheckpointWriter(self._commit, background=background)
        self.pointer = pointer
        self.saves: list[Saved] = []

    def save(self, state: dict[str, Any]) -> None:
        """Copy a state dict and save it; the dict may change as soon as this returns."""
        self._writer.save({**state, **self._about})

    def poll(self) -> None:
        """Announce the saves that were committed since the last call."""
        self._announce(self._writer.finished())

    def wait(self) -> None:
        """Wait until every state given to `save` is durable, and announce it."""
        self._announce(self._writer.wait())

    def close(self) -> Exception | None:
        """Wait as `wait` does; return a failure that no call has raised yet, if there is one."""
        try:
            self.wait()
        except Exception as error:
            return error
        finally:
            self._writer.close()
        return None

    def _commit(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        """Check and store one state, in the writer's thread; return pointer and size in bytes."""
        report_progress("saving", computing=True)
        try:
            return self._check_and_store(state)
        finally:
            report_idle()

    def _check_and_store(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        step, loss = state["step"], state["loss"]
        if on_purpose := self._check_finite(state["model"], step=step, loss=loss):
            state = {**state, "not_finite": on_purpose}
        if self._metrics:
            self._metrics.sync()
        pointer = self._store.save(state)
        return pointer, self._store.last_size_bytes

    def _announce(self, finished: list[Saved]) -> None:
        for saved in finished:
            self.pointer = saved.pointer
            self.saves.append(saved)
            figures = {
                "save_stall_s": round(saved.stall_s, 6),
                "save_durable_s": round(saved.durable_s, 6),
                "save_bytes": saved.size_bytes,
            }
            self._emit("checkpoint_saved", {**saved.pointer.model_dump(), **figures})
