"""The step loop. It knows no path: it is given batches, and something to call for a save."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from speedtronic.errors import DataError, NonFiniteError, UsageError
from speedtronic.liveness import report_progress
from speedtronic.shutdown import Interrupted, InterruptibleWait
from speedtronic.training.batch import compute_loss, count_labels, to_device
from speedtronic.training.compilation import Compiled
from speedtronic.training.metrics import Hook
from speedtronic.training.module_snapshot import ForwardUndo
from speedtronic.training.precision import Precision
from speedtronic.training.state import TrainState
from speedtronic.training.validation import Validation, evaluate

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 100


@dataclass(frozen=True)
class TrainResult:
    """How a call of `Trainer.fit` ended.

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
    """Advance a `TrainState` to absolute target steps.

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
        hooks: told of events.
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
        self._accumulation = accumulation
        self._grad_clip = grad_clip
        self._save = save
        self._wait_for_saves = wait_for_saves or (lambda: None)
        self._save_every = save_every
        self._save_on_stop = save_on_stop
        self._validation = validation
        self._model = Compiled(state.model, state.device) if compiled else state.model
        self._log_every = log_every
        self._hooks = hooks
        self._on_step = on_step or (lambda step: None)
        self._stopping = False
        self._save_requested = False
        self._saved_step = state.step  # what a run begins with is on disk, or is step 0
        self._first_update = True
        self._validated_step = state.step if state.is_validated else None
        self._waiting = InterruptibleWait()
        self._skipped_in_a_row = 0
        # Not by requires_grad, which may change: what is frozen has no gradient and counts nothing.
        optimized = {id(p) for group in state.optimizer.param_groups for p in group["params"]}
        self._trainable = [p for p in state.model.parameters() if id(p) in optimized]
        self._warned_of_untrained = False

    def request_stop(self) -> None:
        """Let `fit` return after the update at hand. Safe in a signal handler.

        Called in the thread of `fit`, as a handler is, it interrupts a wait for data and a
        validation. An update of several micro batches is undone if it can be, else it ends.
        """
        self._stopping = True
        self._waiting.interrupt()

    def request_save(self) -> None:
        """Let `fit` save after the update at hand and go on. Safe in a signal handler.

        Asked once more before it has, it interrupts as `request_stop` does, saves, and begins anew
        what it interrupted.
        """
        if self._save_requested:
            self._waiting.interrupt()
        self._save_requested = True

    @property
    def save_requested(self) -> bool:
        """Whether a save was asked for that is not made yet."""
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
            state.begin()
            self._validate_if_due()  # a stop may have come before it
        while state.step < target and not self._stopping:
            lr = state.schedule.lr
            try:
                updated_loss, updated = self._update()
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

    def _update(self) -> tuple[torch.Tensor, bool]:
        """One optimizer update over `accumulation` micro batches, weighted by their labels.

        Returns:
            The mean loss as a scalar on the device, not waited for; and whether the update was
            made, which is not so when the scaler found infinities.
        """
        state = self.state
        state.mark()
        batches = self._fetch()
        undo = ForwardUndo(state.model) if self._accumulation > 1 else None
        counts = [count_labels(batch) for batch in batches]
        state.optimizer.zero_grad(set_to_none=True)
        total: torch.Tensor | None = None
        for number, weight in enumerate(self._weights(batches, counts)):
            # The first update may compile, and sets up the device and its libraries.
            report_progress(
                "training, micro batches", number + 1, len(batches), computing=self._first_update
            )
            if self._stopping and undo is not None and undo.possible:
                undo.undo()
                state.optimizer.zero_grad(set_to_none=True)
                raise Interrupted
            if weight == 0:  # its mean over no labels would be NaN
                continue
            with self._precision.autocast():
                loss = compute_loss(self._model, self._on_device(batches[number]))
                if not loss.requires_grad:
                    raise UsageError(
                        "the loss that the model returned depends on no parameter that requires a "
                        "gradient; is it detached, made under no_grad, or is all of it frozen?"
                    )
                loss = loss if weight == 1 else loss * weight
            (state.scaler.scale(loss) if state.scaler else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        self._first_update = False
        state.tokens += sum(counts)
        return total, self._apply_gradients()

    def _fetch(self) -> list[Any]:
        """The micro batches of an update; `Interrupted` if a stop comes before they are there."""
        with self._waiting:
            if self._stopping:
                raise Interrupted
            try:
                return [self._next_batch(number) for number in range(self._accumulation)]
            except Exception:
                if self._stopping:  # processes that the data start themselves may end on a signal
                    raise Interrupted from None
                raise

    def _next_batch(self, number: int) -> Any:
        report_progress("waiting for data, micro batches", number + 1, self._accumulation)
        return self.state.batches.next_batch()

    def _weights(self, batches: list[Any], counts: list[int]) -> list[float]:
        """The share of each micro batch in the mean over all labels of the update."""
        if any(counts):
            return [count / sum(counts) for count in counts]
        if all(isinstance(batch, dict) and "labels" in batch for batch in batches):
            labels = batches[0]["labels"]
            if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
                raise DataError(
                    f"every label of the update after step {self.state.step} is -100; there is "
                    "nothing to learn from its samples"
                )
        return [1 / len(batches)] * len(batches)

    def _apply_gradients(self) -> bool:
        state, scaler = self.state, self.state.scaler
        if self._grad_clip is not None:
            if scaler is not None:
                scaler.unscale_(state.optimizer)
            torch.nn.utils.clip_grad_norm_(self._trainable, self._grad_clip)
        if scaler is None:
            state.optimizer.step()
        else:
            scale = scaler.get_scale()
            scaler.step(state.optimizer)
            scaler.update()
            if scaler.get_scale() < scale:  # it found infinities and left the weights alone
                self._count_skipped()
                return False
            self._skipped_in_a_row = 0
        state.schedule.step()
        state.step += 1
        return True

    def _count_skipped(self) -> None:
        self.state.skipped_updates += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteError(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row were skipped after step "
                f"{self.state.step}, each for infinite gradients; lower optimizer.lr or set "
                "precision.mode to bf16 or fp32"
            )

    def _validate_if_due(self, loss: torch.Tensor | None = None) -> None:
        """Validate at multiples of the interval, once; a stop leaves it to who resumes."""
        state, validation = self.state, self._validation
        if validation is None or state.step == 0 or state.step % validation.every_steps:
            return
        while not self._stopping and self._validated_step != state.step:
            try:
                self._validate(validation)
            except Interrupted:
                self._save_if_requested(loss)

    def _validate(self, validation: Validation) -> None:
        state = self.state
        val_loss = evaluate(state.model, validation.batches, self._precision, self._waiting)
        self._validated_step = state.step
        if not math.isfinite(val_loss):
            logger.warning(
                "the validation loss of step %d is %s; the step counts as not validated, and "
                "training goes on",
                state.step,
                val_loss,
            )
        state.record_validation(val_loss if math.isfinite(val_loss) else None)
        for hook in self._hooks:
            hook.on_event("validation", {"step": state.step, "val_loss": state.val_loss})

    def _on_device(self, batch: Any) -> Any:
        device = self.state.device
        return batch if device.type == "cpu" else to_device(batch, device)

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
        """Name, once, a parameter that was frozen when the optimizer was made and is no longer."""
        if self._warned_of_untrained:
            return
        optimized = {id(parameter) for parameter in self._trainable}
        untrained = [
            name
            for name, parameter in self.state.model.named_parameters()
            if parameter.requires_grad and id(parameter) not in optimized
        ]
        if untrained:
            self._warned_of_untrained = True
            more = f" and {len(untrained) - 1} more" if len(untrained) > 1 else ""
            logger.warning(
                "model: %s%s requires a gradient and is NOT trained, for it was frozen, or not "
                "there, when the optimizer was made. Let the factory return it trainable and "
                "freeze it in the first forward pass; what is frozen there can be trained later",
                untrained[0],
                more,
            )

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
