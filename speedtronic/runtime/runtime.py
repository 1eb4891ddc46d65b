"""Trains one run in this process: connects trainer, saver and hooks."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

from speedtronic.checkpoint import CheckpointStore, Pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.writer import Saved
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import SpeedtronicError
from speedtronic.run_directory import logging_path, record_place
from speedtronic.runtime.components import Components
from speedtronic.runtime.saver import Saver
from speedtronic.runtime.start import StartResult
from speedtronic.storage.urls import local_path
from speedtronic.training.metrics import Hook, JsonLines
from speedtronic.training.trainer import Trainer, TrainResult

logger = logging.getLogger(__name__)


class Runtime:
    """Holds one run and its lock in this process; a context manager. `build_runtime` makes it.

    Attributes:
        config: with the schedule's horizon filled in.
        state: model, optimizer and everything else that is trained.
        trainer: advances `state`; use `train`, which also tells the hooks.
        store: the checkpoints; None when the run neither saves nor resumes.
        notes: what differs from when the run was begun or last saved, for people.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        components: Components,
        *,
        store: CheckpointStore | None,
        held: ExitStack,
        started: StartResult,
        hooks: Sequence[Hook],
        on_step: Callable[[int], None] | None,
    ) -> None:
        self.config = config
        self.state = components.state
        self.store = store
        self.notes = started.notes
        self._held = held
        self._hooks = list(hooks)
        self._started = False
        self._placed = False
        self._metrics = _open_metrics(config, self.state.step, held)
        self._on_step = on_step
        self._resumed_from = started.pointer
        self._record_place(started.pointer)
        about = {
            "config": config.to_dict(redact_secrets=True),
            "precision": {"mode": components.precision.mode},
            "data_fingerprint": components.data_fingerprint,
            "environment": components.environment,
            "history": started.history,
        }
        self._saver = None
        if store is not None and config.checkpoint.enabled:
            self._saver = Saver(
                store,
                about=about,
                check_finite=components.check_finite,
                pointer=started.pointer,
                metrics=self._metrics,
                emit=self._emit_save,
                background=config.checkpoint.async_save,
            )
            held.callback(self._saver.close)
        self.trainer = Trainer(
            self.state,
            precision=components.precision,
            accumulation=config.data.target_batch_size // config.data.micro_batch_size,
            grad_clip=config.optimizer.grad_clip,
            save=self._saver.save if self._saver else None,
            wait_for_saves=self._saver.wait if self._saver else None,
            save_every=config.checkpoint.every_steps,
            save_on_stop=config.checkpoint.save_on_stop,
            validation=components.validation,
            compiled=config.compile,
            log_every=config.logging.every_steps,
            hooks=[*([self._metrics] if self._metrics else []), *self._hooks],
            on_step=self._after_step,
        )
        if started.forked and self._saver:
            self._saver.save(self.state.state_dict())  # from here on it stands on its own
            self._saver.wait()

    @property
    def pointer(self) -> Pointer | None:
        """Return the newest checkpoint committed or restored; None before the first."""
        return self._saver.pointer if self._saver else self._resumed_from

    @property
    def saves(self) -> list[Saved]:
        """Return the saves committed by this object, oldest first."""
        return self._saver.saves if self._saver else []

    def train(self, target: int) -> TrainResult:
        """Train until the step is `max(step, target)`; see `Trainer.fit`."""
        if not self._started:
            self._started = True
            run_id = self.pointer.run_id if self.pointer else None
            shown = self.config.to_dict(redact_secrets=True)
            self._emit("run_started", {"step": self.state.step, "run_id": run_id, "config": shown})
        before = len(self.saves)
        result = self.trainer.fit(target)
        saves = self.saves[before:]
        if saves:
            result.metrics["saves"] = len(saves)
            result.metrics["save_stall_s"] = sum(saved.stall_s for saved in saves)
            result.metrics["save_durable_s"] = max(saved.durable_s for saved in saves)
            result.metrics["save_bytes"] = saves[-1].size_bytes
        return result

    def matches(self, pointer: Pointer | None) -> bool:
        """Return whether the live state equals, to the bit, the checkpoint that `pointer` names.

        The manifest on disk must be the one that the pointer was made from.
        """
        if pointer is None:
            return self.pointer is None and self.state.step == 0
        return (
            self.state.step == pointer.step
            and self.store is not None
            and self.store.confirms(pointer)
            and state_digest(self.state.state_dict()) == pointer.state_digest
        )

    def close(self) -> None:
        """Wait for the save in flight, end loader workers, close files, release the lock.

        Raises:
            StorageError, NonFiniteError: a save failed, and nobody has heard of it yet.
        """
        try:
            failure = self._saver.close() if self._saver else None
            if self._started:
                self._emit("run_ended", {"step": self.state.step})
        finally:
            self._held.close()
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except SpeedtronicError as failure:
            if error is None:
                raise
            logger.error("a save failed as well: %s", failure)

    def _after_step(self, step: int) -> None:
        if self._saver:
            self._saver.poll()
        if self._on_step is not None:
            self._on_step(step)

    def _record_place(self, pointer: Pointer | None) -> None:
        if pointer is not None and not self._placed:
            record_place(
                local_path(self.config.run.output_dir),
                pointer.run_id,
                self.config.to_dict(redact_secrets=True)["checkpoint"]["directory"],
            )
            self._placed = True

    def _emit_save(self, event: str, fields: dict[str, Any]) -> None:
        self._record_place(self.pointer)
        if self._metrics:  # its lines are in the order of the steps at which they are written
            line = {**fields, "saved_step": fields["step"], "step": self.state.step}
            self._metrics.on_event(event, line)
        self._emit(event, fields)

    def _emit(self, event: str, fields: dict[str, Any]) -> None:
        for hook in self._hooks:
            hook.on_event(event, fields)


def _open_metrics(config: SpeedtronicConfig, step: int, held: ExitStack) -> JsonLines | None:
    path = logging_path(config, config.logging.json_file)
    if path is None:
        return None
    metrics = JsonLines(path)
    held.callback(metrics.close)
    metrics.rewind(step)
    return metrics
