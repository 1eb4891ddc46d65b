"""The step loop. It knows no path: it is given batches, and something to call for a save."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from speedtronic.errors import NonFiniteError, UsageError
from speedtronic.training.metrics import Hook
from speedtronic.training.precision import Precision
from speedtronic.training.state import TrainState

IGNORED_LABEL = -100


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
        metrics: `updates` made and `tokens_per_s` of this call.
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
        save: called with the state dict at multiples of `save_every`, and on stopping when
            `save_on_stop`; returns once the checkpoint is committed. None saves nothing.
        save_every: steps between saves.
        save_on_stop: also save when a target or a stop falls between two multiples.
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
        save_every: int = 100,
        save_on_stop: bool = False,
        log_every: int = 10,
        hooks: Sequence[Hook] = (),
        on_step: Callable[[int], None] | None = None,
    ) -> None:
        self.state = state
        self._precision = precision
        self._accumulation = accumulation
        self._grad_clip = grad_clip
        self._save = save
        self._save_every = save_every
        self._save_on_stop = save_on_stop
        self._log_every = log_every
        self._hooks = hooks
        self._on_step = on_step or (lambda step: None)
        self._stopping = False
        self._trainable = [p for p in state.model.parameters() if p.requires_grad]

    def request_stop(self) -> None:
        """Let `fit` return after the update at hand. Safe in a signal handler."""
        self._stopping = True

    def fit(self, target: int) -> TrainResult:
        """Train until `step` is `max(step, target)`; a target already reached changes nothing.

        Raises:
            NonFiniteError: the loss is NaN or infinite; nothing was saved for that step.
            StorageError: a save failed; the checkpoint before it is whole.
        """
        state, started = self.state, time.perf_counter()
        first_step, first_tokens = state.step, state.tokens
        logged = (started, state.tokens)
        loss: torch.Tensor | None = None
        if state.step < target:
            state.begin()
        while state.step < target and not self._stopping:
            lr = state.schedule.lr
            loss = self._update()
            if state.step % self._log_every == 0:
                state.loss = self._read(loss)
                logged = self._log(lr, logged)
            if self._save is not None and state.step % self._save_every == 0:
                self._commit(loss)
            self._on_step(state.step)
        if loss is not None:
            state.loss = self._read(loss)
            if self._save_on_stop and self._save is not None and state.step % self._save_every:
                self._commit(loss)
        elapsed = time.perf_counter() - started
        return TrainResult(
            steps=state.step,
            samples=state.samples,
            tokens=state.tokens,
            final_loss=state.loss,
            skipped_updates=state.skipped_updates,
            elapsed_s=elapsed,
            metrics={
                "updates": state.step - first_step,
                "tokens_per_s": (state.tokens - first_tokens) / elapsed,
            },
        )

    def _update(self) -> torch.Tensor:
        """One optimizer update over `accumulation` micro batches.

        Returns:
            The mean loss as a scalar on the device, not waited for.
        """
        state = self.state
        state.optimizer.zero_grad(set_to_none=True)
        total: torch.Tensor | None = None
        for _ in range(self._accumulation):
            batch = state.batches.next_batch()
            state.tokens += _label_tokens(batch)
            with self._precision.autocast():
                loss = _loss(state.model(**self._on_device(batch))) / self._accumulation
            (state.scaler.scale(loss) if state.scaler else loss).backward()
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        self._apply_gradients()
        return total

    def _apply_gradients(self) -> None:
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
                state.skipped_updates += 1
                return
        state.schedule.step()
        state.step += 1

    def _on_device(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        device = self.state.device
        if device.type == "cpu":
            return batch
        return {name: x.to(device, non_blocking=True) for name, x in batch.items()}

    def _read(self, loss: torch.Tensor) -> float:
        value = float(loss)
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the loss of step {self.state.step} is {value}; nothing was saved for it. Lower "
                "optimizer.lr or set optimizer.grad_clip, then resume from the last checkpoint"
            )
        return value

    def _log(self, lr: float, logged: tuple[float, int]) -> tuple[float, int]:
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
        assert self._save is not None
        self.state.loss = self._read(loss)
        self._save(self.state.state_dict())


def _label_tokens(batch: dict[str, torch.Tensor]) -> int:
    """Labels that count; read on the CPU, before the batch moves to a device."""
    return int((batch["labels"] != IGNORED_LABEL).sum())


def _loss(output: Any) -> torch.Tensor:
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
        raise UsageError(f"the model returned {type(loss).__name__}, expected a scalar loss tensor")
    return loss
