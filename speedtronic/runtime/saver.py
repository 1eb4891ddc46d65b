"""The saves of one run: what is looked at, written and told, and in which order."""

from collections.abc import Callable, Mapping
from typing import Any

from speedtronic.checkpoint import CheckpointStore, Pointer
from speedtronic.checkpoint.writer import CheckpointWriter, Saved
from speedtronic.liveness import report_idle, report_progress
from speedtronic.training.finite_check import FiniteCheck
from speedtronic.training.metrics import JsonLines

Tell = Callable[[str, dict[str, Any]], None]


class Saver:
    """Makes states of a run durable, in the background or not.

    Nothing with a NaN in it is committed, and the metrics up to a step are on disk before its
    checkpoint is. A failure is raised by the next call of anything but `close`.

    Args:
        store: where to.
        about: what every checkpoint carries besides the state.
        check_finite: raises where the model of a state became NaN or infinite.
        pointer: the newest checkpoint so far.
        metrics: the file of metrics, if there is one.
        tell: called as (event, payload) in the caller's thread, some time after each commit.
        background: whether training goes on while a save is written.

    Attributes:
        pointer: the newest checkpoint committed, or the one given.
        saves: those told of, oldest first.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        about: Mapping[str, Any],
        check_finite: FiniteCheck,
        pointer: Pointer | None,
        metrics: JsonLines | None,
        tell: Tell,
        background: bool,
    ) -> None:
        self._store = store
        self._about = about
        self._check_finite = check_finite
        self._metrics = metrics
        self._tell = tell
        self._writer = CheckpointWriter(self._commit, background=background)
        self.pointer = pointer
        self.saves: list[Saved] = []

    def save(self, state: dict[str, Any]) -> None:
        """Take a state dict; it may change as soon as this returns."""
        self._writer.save({**state, **self._about})

    def poll(self) -> None:
        """Tell of the saves that were committed since the last call."""
        self._tell_of(self._writer.finished())

    def wait(self) -> None:
        """Return once everything taken is durable, and told of."""
        self._tell_of(self._writer.wait())

    def close(self) -> Exception | None:
        """As `wait`; returns the failure that nobody has heard of yet, if there is one."""
        try:
            self.wait()
        except Exception as error:
            return error
        finally:
            self._writer.close()
        return None

    def _commit(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        """In the writer's thread."""
        report_progress("saving", computing=True)
        try:
            return self._durable(state)
        finally:
            report_idle()

    def _durable(self, state: dict[str, Any]) -> tuple[Pointer, int]:
        step, loss = state["step"], state["loss"]
        if on_purpose := self._check_finite(state["model"], step=step, loss=loss):
            state = {**state, "not_finite": on_purpose}
        if self._metrics:
            self._metrics.sync()
        pointer = self._store.save(state)
        return pointer, self._store.last_size_bytes

    def _tell_of(self, finished: list[Saved]) -> None:
        for saved in finished:
            self.pointer = saved.pointer
            self.saves.append(saved)
            figures = {
                "save_stall_s": round(saved.stall_s, 6),
                "save_durable_s": round(saved.durable_s, 6),
                "save_bytes": saved.size_bytes,
            }
            self._tell("checkpoint_saved", {**saved.pointer.model_dump(), **figures})
