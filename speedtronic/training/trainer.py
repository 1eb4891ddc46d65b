"""Run the step loop. It knows no path: it is given batches, and a function to call for a save."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from speedtronic.errors import NonFiniteError
from speedtronic.shutdown import Interrupted, InterruptibleWait
from speedtronic.training.metrics import Hook
from speedtronic.training.optimizer_update import OptimizerUpdate, StopRequest, warn_of_untrained
from speedtronic.training.precision import Precision
from speedtronic.training.state import TrainState
from speedtronic.training.validation import Validation, validate

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """Says how a call of `Trainer.fit` ended.

    Attributes:
        steps: the absolute step reached, not the number of updates made by this call.
        samples: samples consumed since the run began.
        tokens: label tokens trained on since the run began.
        final_loss: mean loss of the last update; None before the first one.
        skipped_updates: updates skipped by the gradient scaler since the run began.
        elapsed_s: wall time of this call.
        metrics: `updates` made and `tokens_per_s` of this call, and the last `val_loss` if any;
            with saves their number, and see `Saved`: `save_stall_s` in all, `save_durable_s` at
            most, `save_bytes` of the last.
    """

    steps: int
    samples: int
    tokens: int
    final_loss: float | None
    skipped_updates: int
    elapsed_s: float
    metrics: dict[str, float] = field(default_factory=dict)


class Trainer:
    """Advances a `TrainState` to absolute target steps.

    Args:
        state: what is trained; it may have been restored.
        precision: how the forward pass computes.
        accumulation: micro batches to one update, >= 1.
        grad_clip: largest norm of the gradient, or None.
        save: given the state dict at multiples of `save_every`, and on stopping when
            `save_on_stop`; the state may change as soon as it returns. None saves nothing.
        wait_for_saves: returns once everything given to `save` is durable.
        save_every: steps between saves.
        save_on_stop: also save when a target or a stop falls between two multiples.
        validation: what to evaluate and when; None evaluates nothing.
        compiled: run the model through torch.compile.
        log_every: steps between `train_step` events; only then is the loss read from the device.
        hooks: receivers of training events.
        on_step: called with the step after each update; must be quick.
    """

    def __init__(
        self,
        state: TrainState,
        *,
        precision: Precision,
        accumulation: int = 1,
        grad_clip: float | None = None,
        save: Callable[[dict[str, Any]], None] | None = None,
        wait_for_saves: Callable[[], None] | None = None,
        save_every: int = 100,
        save_on_stop: bool = False,
        validation: Validation | None = None,
        compiled: bool = False,
        log_every: int = 10,
        hooks: Sequence[Hook] = (),
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self.state = state
        self._precision = precision
        self._save = save
        self._wait_for_saves = wait_for_saves or (lambda: None)
        self._save_every = save_every
        self._save_on_stop = save_on_stop
        self._validation = validation
        self._log_every = log_every
        self._hooks = hooks
        self._on_step = on_step or (lambda step: None)
        self._stop = StopRequest()
        self._save_requested = False
        self._saved_step = state.step  # what a run begins with is on disk, or is step 0
        self._validated_step = state.step if state.is_validated else None
        self._waiting = InterruptibleWait()
        self._update = OptimizerUpdate(
            state,
            precision=precision,
            accumulation=accumulation,
            grad_clip=grad_clip,
            compiled=compiled,
            waiting=self._waiting,
            stop=self._stop,
        )
        self._warned_of_untrained = False

    def request_stop(self) -> None:
        """Make `fit` return after the present update. Safe in a signal handler.

        Called in the thread of `fit`, as a handler is, it interrupts a wait for data and a
        validation. An update of several micro batches is undone if it can be, else it ends.
        """
        self._stop.requested = True
        self._waiting.interrupt()

    def request_save(self) -> None:
        """Make `fit` save after the present update and continue. Safe in a signal handler.

        Asked once more before it has, it interrupts as `request_stop` does, saves, and begins anew
        what it interrupted.
        """
        if self._save_requested:
            self._waiting.interrupt()
        self._save_requested = True

    @property
    def save_requested(self) -> bool:
        """Whether a requested save has not been made yet."""
        return self._save_requested

    def fit(self, target: int) -> TrainResult:
        """Train until `step` is `max(step, target)`; a target already reached changes nothing.

        What was saved on the way is durable on return.

        Raises:
            NonFiniteError: the loss, or a weight, is NaN or infinite; nothing was saved of that.
            StorageError: a save failed; the checkpoint before it is whole.
        """
        state, started = self.state, time.perf_counter()
        first_step, first_tokens = state.step, state.tokens
        logged = (started, state.tokens)
        loss: torch.Tensor | None = None
        if state.step < target:
            state.apply_pending_rng()
            self._validate_if_due()  # a stop may have come before it
        while state.step < target and not self._stop.requested:
            lr = state.schedule.lr
            try:
                updated_loss, updated = self._update.run()
            except Interrupted:
                state.back_to_mark()
                self._save_if_requested(loss)
                continue
            loss = updated_loss
            if not updated:
                continue
            if state.step % self._log_every == 0:
                state.loss = self._read(loss)
                logged = self._log(lr, logged)
            self._validate_if_due(loss)
            if self._save is not None and state.step % self._save_every == 0:
                self._warn_of_untrained()
                self._commit(loss)
            self._save_if_requested(loss)
            self._on_step(state.step)
        if loss is not None:
            state.loss = self._read(loss)
            if self._save_on_stop:
                self._commit(loss)
        self._wait_for_saves()
        elapsed = time.perf_counter() - started
        metrics = {
            "updates": state.step - first_step,
            "tokens_per_s": (state.tokens - first_tokens) / elapsed,
        }
        if state.val_loss is not None:
            metrics["val_loss"] = state.val_loss
        return TrainResult(
            steps=state.step,
            samples=state.samples,
            tokens=state.tokens,
            final_loss=state.loss,
            skipped_updates=state.skipped_updates,
            elapsed_s=elapsed,
            metrics=metrics,
        )

    def _validate_if_due(self, loss: torch.Tensor | None = None) -> None:
        """Validate at multiples of the interval, once; a stop leaves it to who resumes."""
        state, validation = self.state, self._validation
        if validation is None or state.step == 0 or state.step % validation.every_steps:
            return
        while not self._stop.requested and self._validated_step != state.step:
            try:
                validate(state, validation, self._precision, self._hooks, self._waiting)
                self._validated_step = state.step
            except Interrupted:
                self._save_if_requested(loss)

    def _read(self, loss: torch.Tensor) -> float:
        value = float(loss)
        if not math.isfinite(value):
            self._wait_for_saves()  # the one in flight may have found the cause, a step before
            raise NonFiniteError(
                f"the loss of step {self.state.step} is {value}; nothing was saved for it. Lower "
                "optimizer.lr or set optimizer.grad_clip, then resume from the last checkpoint"
            )
        return value

    def _warn_of_untrained(self) -> None:
        """Warn once of parameters that the optimizer lacks; they may be unfrozen at any time."""
        if not self._warned_of_untrained:
            self._warned_of_untrained = warn_of_untrained(self.state.model, self._update.trainable)

    def _log(self, lr: float, logged: tuple[float, int]) -> tuple[float, int]:
        self._warn_of_untrained()
        state, now = self.state, time.perf_counter()
        payload = {
            "step": state.step,
            "loss": state.loss,
            "lr": lr,
            "samples": state.samples,
            "tokens": state.tokens,
            "tokens_per_s": round((state.tokens - logged[1]) / max(now - logged[0], 1e-9), 1),
        }
        for hook in self._hooks:
            hook.on_event("train_step", payload)
        return now, state.tokens

    def _commit(self, loss: torch.Tensor) -> None:
        """Save the present step, unless that was done."""
        if self._save is not None and self.state.step != self._saved_step:
            self.state.loss = self._read(loss)
            self._save(self.state.state_dict())
            self._saved_step = self.state.step

    def _save_if_requested(self, loss: torch.Tensor | None) -> None:
        if self._save_requested:
            self._save_requested = False
            if loss is not None:  # else nothing was trained since the newest checkpoint
                self._commit(loss)
