"""What does not fit is refused by name, and the objects at hand are as they were."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint.digest import state_digest
from speedtronic.errors import RestoreError
from speedtronic.runtime.components import build_components
from speedtronic.training.state import TrainState
from tests.tiny import tiny_config

Change = Callable[[dict[str, Any]], object]


def live(tmp_path: Path, **changes: Any) -> TrainState:
    """A run that has made one update."""
    state = build_components(tiny_config(tmp_path, **changes)).state
    for parameter in state.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizer.step()
    return state


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def drop(*path: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        *parents, last = path
        inner: Any = state
        for key in parents:
            inner = inner[key]
        del inner[last]

    return change


def put(value: Any, *path: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        *parents, last = path
        inner: Any = state
        for key in parents:
            inner = inner[key]
        inner[last] = value

    return change


MOMENT = ("optimizer", "state", 0)
UNFIT: dict[str, tuple[Change, str]] = {
    "a module too many": (put(True, "modes", "nobody"), "knows a module 'nobody'"),
    "a module missing": (drop("modes", "blocks"), "knows no module 'blocks'"),
    "a moment missing": (drop(*MOMENT, "exp_avg_sq"), "exp_avg_sq is missing"),
    "a moment of another shape": (put(torch.ones(3), *MOMENT, "exp_avg"), r"exp_avg is \[3\]"),
    "a moment that is text": (put("x", *MOMENT, "exp_avg"), "exp_avg is no tensor"),
    "a group missing": (drop("optimizer", "param_groups", 0), "groups of"),
    "several optimizers": (
        lambda state: state.update(optimizer={"parts": [state["optimizer"]]}),
        "optimizers are stored",
    ),
    "a weight missing": (lambda state: state["model"].popitem(), "missing, the model has"),
    "data in another order": (put(99, "data", "seed"), "saved 99"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_changes_nothing(tmp_path: Path, name: str) -> None:
    saved = copied(live(tmp_path).state_dict())
    for tensor in saved["model"].values():
        tensor.fill_(7.0)
    change, said = UNFIT[name]
    change(saved)
    state = live(tmp_path)
    before = state_digest(state.state_dict())
    with pytest.raises(RestoreError, match=said):
        state.load_state_dict(saved)
    assert state_digest(state.state_dict()) == before


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_fits_is_taken_up(tmp_path: Path, optimizer: str) -> None:
    saved = copied(live(tmp_path, **{"optimizer.name": optimizer}).state_dict())
    state = build_components(tiny_config(tmp_path, **{"optimizer.name": optimizer})).state
    state.load_state_dict(saved)
    assert state_digest(state.state_dict()) == state_digest(saved)
