"""TrainState: everything that determines the rest of a run, and its form in a checkpoint."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from speedtronic.errors import RestoreError
from speedtronic.training.optim import Schedule, inherit
from speedtronic.training.rng import capture_rng, restore_rng

FORMAT_VERSION = 1
MAX_SHOWN = 10  # lines of a message


class Batches(Protocol):
    """An endless source of micro batches that knows its position."""

    position: int

    def next_batch(self) -> Any: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None: ...


class TrainState:
    """The live objects of a run and its counters.

    Attributes:
        step: completed optimizer updates, absolute.
        samples: samples consumed, those of skipped updates included.
        tokens: label tokens trained on.
        skipped_updates: updates that the gradient scaler skipped; not counted in `step`.
        loss: mean loss of the last update, known at the logging cadence and at saves.
        val_loss: the newest validation loss; None before the first.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        scaler: torch.amp.GradScaler | None,
        batches: Batches,
        device: torch.device,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.scaler = scaler
        self.batches = batches
        self.device = device
        self.step = 0
        self.tokens = 0
        self.skipped_updates = 0
        self.loss: float | None = None
        self.val_loss: float | None = None
        self._validated_at: int | None = None
        self._inherited: dict[str, Any] = {}  # of a run of the older package
        # The random state waits here until the first step, so that nothing done between a restore
        # (or the build of a fresh run) and training can draw from it.
        self._waiting_rng: dict[str, Any] | None = capture_rng(device)

    @property
    def samples(self) -> int:
        return self.batches.position

    def record_validation(self, val_loss: float) -> None:
        """Take note of the validation loss at the present step."""
        self.val_loss = val_loss
        self._validated_at = self.step

    def begin(self) -> None:
        """Put the random state in place; called just before the first step."""
        if self._waiting_rng is not None:
            restore_rng(self._waiting_rng, self.device)
            self._waiting_rng = None

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds of training. Tensors are live, not copies."""
        rng = self._waiting_rng if self._waiting_rng is not None else capture_rng(self.device)
        return {
            "format_version": FORMAT_VERSION,
            "model": self.model.state_dict(),
            "modes": {name: module.training for name, module in self.model.named_modules()},
            "optimizer": {**self.optimizer.state_dict(), **self._inherited},
            "scheduler": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "step": self.step,
            "samples": self.samples,
            "tokens": self.tokens,
            "skipped_updates": self.skipped_updates,
            "loss": self.loss,
            "val_loss": self.val_loss,
            "validated_at": self._validated_at,
            "data": self.batches.state_dict(),
            "rng": rng,
            "coordinator": None,
        }

    def load_state_dict(self, state: dict[str, Any], *, other_data: bool = False) -> None:
        """Take up a checkpoint. The random state is put in place by `begin`.

        Args:
            state: what `state_dict` returned.
            other_data: the data may be others than those the checkpoint was made with.

        Raises:
            RestoreError: it does not fit the objects at hand; the run cannot go on with them.
        """
        self._load_model(state)
        self._load_optimizer(state["optimizer"])
        self.schedule.load_state_dict(state["scheduler"])  # after the optimizer: it sets the rates
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.batches.load_state_dict(state["data"], any_order=other_data)
        self.step = int(state["step"])
        self.tokens = int(state["tokens"])
        self.skipped_updates = int(state["skipped_updates"])
        self.loss = state["loss"]
        self.val_loss = state.get("val_loss")
        self._validated_at = state.get("validated_at")
        self._waiting_rng = state["rng"]

    def _load_optimizer(self, saved: dict[str, Any]) -> None:
        # Torch takes up the saved settings too; those that count are the configured ones, which
        # are the same unless a change was allowed.
        configured = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        try:
            self.optimizer.load_state_dict(saved)
        except (ValueError, KeyError) as error:
            raise RestoreError(f"the optimizer's state does not fit: {error}") from error
        for group, settings in zip(self.optimizer.param_groups, configured, strict=True):
            group.update(settings)
        if "inherited" in saved:
            self._inherited = {"inherited": saved["inherited"]}
            inherit(self.model, self.optimizer, saved["inherited"])

    def _load_model(self, state: dict[str, Any]) -> None:
        load_weights(self.model, state["model"])
        modes = state["modes"]
        for name, module in self.model.named_modules():
            if name not in modes:
                raise RestoreError(f"the checkpoint knows no module {name!r}; the model has one")
            module.training = modes[name]


def load_weights(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters and buffers into the model, every one and no other.

    Raises:
        RestoreError: as `refuse_unfit`; nothing was copied.
    """
    refuse_unfit(model, weights)
    model.load_state_dict(weights)


def refuse_unfit(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Look whether the weights are those of the model, by name and shape.

    Raises:
        RestoreError: names the parameters that are missing, unknown or of another shape.
    """
    own = model.state_dict()
    both = [name for name in own if name in weights]
    lines = [
        f"{name}: stored {_shape(weights[name])}, the model has {_shape(own[name])}"
        for name in both
        if _shape(own[name]) != _shape(weights[name])
    ]
    lines += [
        f"{name}: missing, the model has {_shape(own[name])}" for name in own if name not in weights
    ]
    lines += [
        f"{name}: not in the model, stored {_shape(weights[name])}"
        for name in weights
        if name not in own
    ]
    if lines:
        rest = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
        shown = "\n  ".join(lines[:MAX_SHOWN] + rest)
        raise RestoreError(f"the weights do not fit the model:\n  {shown}")


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__
