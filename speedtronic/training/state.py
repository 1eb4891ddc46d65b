"""Hold, save and load everything that determines the rest of a run: `TrainState`."""

import math
from typing import Any, Protocol

import torch
from torch import nn

from speedtronic.errors import RestoreError
from speedtronic.training.compatibility import refuse_unfit_modes, refuse_unfit_optimizer
from speedtronic.training.module_state import ModuleState
from speedtronic.training.optimizers import inherit
from speedtronic.training.rng import capture_rng, restore_rng, rng_restorer
from speedtronic.training.schedules import Schedule
from speedtronic.training.weights import load_weights, model_state, refuse_unfit

FORMAT_VERSION = 1


class Batches(Protocol):
    """Gives micro batches without end and knows its position."""

    position: int

    def next_batch(self) -> Any: ...
    def mark(self) -> None: ...
    def back_to_mark(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], *, any_order: bool = False) -> None: ...


class TrainState:
    """Holds the live objects of a run and its counters.

    Attributes:
        step: completed optimizer updates, absolute.
        samples: samples consumed, those of skipped updates included.
        tokens: label tokens trained on.
        skipped_updates: updates that the gradient scaler skipped; not counted in `step`.
        loss: mean loss of the last update, known at the logging cadence and at saves.
        val_loss: of the newest validation; None before the first, or if it was not finite.
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
        self._module_state = ModuleState(model)
        self._inherited: dict[str, Any] = {}  # of a run of the older package
        # The random state waits here until the first step, so that nothing done between a restore
        # (or the build of a fresh run) and training can draw from it.
        self._waiting_rng: dict[str, Any] | None = capture_rng(device)
        self._restore_rng = rng_restorer(device)

    @property
    def samples(self) -> int:
        return self.batches.position

    def record_validation(self, val_loss: float | None) -> None:
        """Record the validation loss of the present step; None if it is not finite."""
        self.val_loss = val_loss
        self._validated_at = self.step

    @property
    def is_validated(self) -> bool:
        """Whether the validation loss is of the present step."""
        return self._validated_at == self.step

    def apply_pending_rng(self) -> None:
        """Restore the loaded random state; called just before the first step."""
        if self._waiting_rng is not None:
            restore_rng(self._waiting_rng, self.device)
            self._waiting_rng = None

    def mark(self) -> None:
        """Remember the random state and the position in the data for `back_to_mark`."""
        self._restore_rng = rng_restorer(self.device)
        self.batches.mark()

    def back_to_mark(self) -> None:
        """Rewind the random state and the position in the data to the last `mark`."""
        self._restore_rng()
        self.batches.back_to_mark()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds of training. Tensors are live, not copies.

        Raises:
            UnsavableError: the model holds something that no checkpoint can.
        """
        rng = self._waiting_rng if self._waiting_rng is not None else capture_rng(self.device)
        state = {
            "format_version": FORMAT_VERSION,
            "model": model_state(self.model),
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
        if module_state := self._module_state.state_dict():
            state["module_state"] = module_state
        return state

    def load_state_dict(self, state: dict[str, Any], *, other_data: bool = False) -> None:
        """Take up a checkpoint. The random state is put in place by `begin`.

        Args:
            state: what `state_dict` returned.
            other_data: the data may be others than those the checkpoint was made with.

        Raises:
            RestoreError: it does not fit the objects at hand, which are as they were wherever that
                can be seen without changing them.
        """
        replaced = state.get("module_state", {}).get("replaced")
        refuse_unfit(self.model, state["model"], replaced=replaced)
        refuse_unfit_modes(self.model, state["modes"])
        refuse_unfit_optimizer(self.model, self.optimizer, state["optimizer"])
        self.batches.load_state_dict(state["data"], any_order=other_data)
        self._load_model(state)
        self._load_optimizer(state["optimizer"])
        self.schedule.load_state_dict(state["scheduler"])  # after the optimizer: it sets the rates
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])
        self.tokens = int(state["tokens"])
        self.skipped_updates = int(state["skipped_updates"])
        self.loss = state["loss"]
        val_loss = state.get("val_loss")  # an earlier version kept what was not finite
        self.val_loss = val_loss if val_loss is not None and math.isfinite(val_loss) else None
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
            self._module_state.count_as_frozen(saved["inherited"]["frozen"])

    def _load_model(self, state: dict[str, Any]) -> None:
        module_state = state.get("module_state", {})
        load_weights(self.model, state["model"], replaced=module_state.get("replaced"))
        self._module_state.load_state_dict(module_state)
        for name, module in self.model.named_modules():
            module.training = state["modes"][name]
