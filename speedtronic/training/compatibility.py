"""Check that a checkpoint's modes and optimizer state fit the live objects.

Looked at before any of these objects changes: torch's own loading finds some of it half way, some
only at the next update, and some never.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from speedtronic.errors import RestoreError
from speedtronic.training.optimizers import OptimizerGroup

# What an optimizer keeps of each parameter besides numbers, once it has made an update of it.
MOMENTS: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.AdamW: {"exp_avg", "exp_avg_sq"},
    torch.optim.Muon: {"momentum_buffer"},
}


def refuse_unfit_modes(model: nn.Module, modes: Mapping[str, bool]) -> None:
    """Check that the modes are those of the model's modules, each of them and no other.

    Raises:
        RestoreError: names the first that is not.
    """
    own = {name for name, _ in model.named_modules()}
    if missing := sorted(own - modes.keys()):
        raise RestoreError(f"the checkpoint knows no module {missing[0]!r}; the model has one")
    if unknown := sorted(modes.keys() - own):
        raise RestoreError(f"the checkpoint knows a module {unknown[0]!r}; the model has none")


def refuse_unfit_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
) -> None:
    """Check that an optimizer's state is of these parameters, in these groups.

    Raises:
        RestoreError: names the parameter, or the groups.
    """
    parts = optimizer.optimizers if isinstance(optimizer, OptimizerGroup) else [optimizer]
    stored = saved.get("parts", [saved])
    if len(stored) != len(parts) or ("parts" in saved) != isinstance(optimizer, OptimizerGroup):
        raise _unfit(f"{len(stored)} optimizers are stored, {len(parts)} are here")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for part, state in zip(parts, stored, strict=True):
        _refuse_other_groups(part, state)
        for parameter, moments in _paired(part, state):
            _refuse_unfit_moments(part, names.get(id(parameter), "a parameter"), parameter, moments)


def _refuse_other_groups(part: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    here = [len(group["params"]) for group in part.param_groups]
    there = [len(group["params"]) for group in state.get("param_groups", [])]
    if here != there:
        raise _unfit(f"stored are groups of {there} parameters, here are groups of {here}")


def _paired(
    part: torch.optim.Optimizer, state: Mapping[str, Any]
) -> Iterator[tuple[torch.Tensor, Mapping[str, Any]]]:
    """Yield each parameter with its stored state, if there is one."""
    for group, stored in zip(part.param_groups, state["param_groups"], strict=True):
        for parameter, number in zip(group["params"], stored["params"], strict=True):
            if moments := state["state"].get(number):
                yield parameter, moments


def _refuse_unfit_moments(
    part: torch.optim.Optimizer, name: str, parameter: torch.Tensor, moments: Mapping[str, Any]
) -> None:
    if missing := sorted(MOMENTS.get(type(part), set()) - moments.keys()):
        raise _unfit(f"{name}: {missing[0]} is missing")
    for key in MOMENTS.get(type(part), ()):
        moment = moments[key]
        if not isinstance(moment, torch.Tensor) or not moment.is_floating_point():
            raise _unfit(f"{name}: {key} is no tensor of real numbers")
        if moment.shape != parameter.shape:
            stored, own = list(moment.shape), list(parameter.shape)
            raise _unfit(f"{name}: {key} is {stored}, the parameter {own}")


def _unfit(what: str) -> RestoreError:
    return RestoreError(f"the optimizer's state does not fit: {what}")
