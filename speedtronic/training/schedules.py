"""Compute the learning rate as a function of the step."""

import math
from typing import Any

import torch


class Schedule:
    """Sets a linear warm-up, then constant or cosine (https://arxiv.org/abs/1608.03983) rate.

    A pure function of the step, so a resumed run has the learning rate of the uninterrupted one.

    Args:
        optimizer: whose groups' learning rates it sets; their present ones are the peaks.
        name: `cosine` or `constant`.
        warmup_steps: steps over which the rate rises to its peak.
        max_steps: the horizon, where the cosine ends; beyond it the floor holds.
        min_lr_ratio: the floor as a share of the peak.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        name: str,
        warmup_steps: int,
        max_steps: int,
        min_lr_ratio: float,
    ) -> None:
        self._optimizer = optimizer
        self._name = name
        self._warmup_steps = warmup_steps
        self._min_lr_ratio = min_lr_ratio
        self._base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.max_steps = max_steps
        self.last_epoch = 0
        self._apply()

    @property
    def lr(self) -> float:
        """The learning rate of the next update, of the first group."""
        return self._base_lrs[0] * self.factor(self.last_epoch)

    @property
    def has_floor(self) -> bool:
        """Whether the rate falls, and stays at its floor from `max_steps` on."""
        return self._name != "constant"

    @property
    def floor(self) -> float:
        """The learning rate at the horizon and beyond, of the first group."""
        return self._base_lrs[0] * self._min_lr_ratio

    def factor(self, step: int) -> float:
        """The share of the peak that the update after `step` completed ones uses."""
        if step < self._warmup_steps:
            return (step + 1) / self._warmup_steps
        if self._name == "constant":
            return 1.0
        span = max(1, self.max_steps - self._warmup_steps)
        progress = min(1.0, (step - self._warmup_steps) / span)
        cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self._min_lr_ratio + (1.0 - self._min_lr_ratio) * cosine

    def step(self) -> None:
        """Advance by one update and set its learning rate."""
        self.last_epoch += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return step, horizon and peaks; `last_epoch` is torch's own name for the step."""
        return {
            "last_epoch": self.last_epoch,
            "max_steps": self.max_steps,
            "base_lrs": list(self._base_lrs),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load step and horizon, and set the optimizer's learning rates accordingly."""
        self.last_epoch = int(state["last_epoch"])
        self.max_steps = int(state["max_steps"])
        self._apply()

    def move_horizon(self, max_steps: int) -> None:
        """Make the cosine end at another step from now on."""
        self.max_steps = max_steps
        self._apply()

    def _apply(self) -> None:
        factor = self.factor(self.last_epoch)
        for group, base_lr in zip(self._optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base_lr * factor
