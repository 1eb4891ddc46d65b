"""The learning rate as a function of the step, and which parameters decay."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from speedtronic import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.training.optimizers import build_optimizer
from speedtronic.training.schedules import Schedule
from tests.tiny import tiny_config

PEAKS = (0.5, 0.25)


def schedule(**changes: Any) -> tuple[Schedule, torch.optim.Optimizer]:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in PEAKS]
    optimizer = torch.optim.AdamW(groups)
    fields = {"name": "cosine", "warmup_steps": 4, "max_steps": 12, "min_lr_ratio": 0.1}
    return Schedule(optimizer, **{**fields, **changes}), optimizer


def lrs(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 0.25),  # the first update has a rate already
        (1, 0.5),
        (3, 1.0),
        (4, 1.0),  # the cosine begins
        (6, 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2),
        (8, 0.55),  # half way
        (12, 0.1),
        (13, 0.1),  # the floor holds
        (10**9, 0.1),
    ],
)
def test_cosine(step: int, factor: float) -> None:
    assert schedule()[0].factor(step) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize(("step", "factor"), [(0, 0.25), (3, 1.0), (4, 1.0), (12, 1.0), (99, 1.0)])
def test_constant(step: int, factor: float) -> None:
    assert schedule(name="constant")[0].factor(step) == factor


@pytest.mark.parametrize("changes", [{"warmup_steps": 12}, {"warmup_steps": 20}, {"max_steps": 1}])
def test_a_warm_up_as_long_as_the_run_or_longer_rises_all_the_way(changes: dict[str, int]) -> None:
    made, _ = schedule(**changes)
    warmup = changes.get("warmup_steps", 4)
    factors = [made.factor(step) for step in range(40)]
    assert factors[:warmup] == [(step + 1) / warmup for step in range(warmup)]
    assert factors[warmup] == 1.0
    assert factors[-1] == pytest.approx(0.1)


def test_without_a_warm_up_it_begins_at_the_peak() -> None:
    assert schedule(warmup_steps=0)[0].factor(0) == 1.0


def test_each_group_keeps_its_own_peak() -> None:
    made, optimizer = schedule()
    assert lrs(optimizer) == [peak * made.factor(0) for peak in PEAKS]
    for step in range(1, 14):
        made.step()
        assert lrs(optimizer) == [peak * made.factor(step) for peak in PEAKS]
        assert made.lr == lrs(optimizer)[0]


def test_a_restored_schedule_sets_the_rates_of_the_optimizer() -> None:
    made, _ = schedule()
    for _ in range(7):
        made.step()
    other, optimizer = schedule(max_steps=99)
    other.load_state_dict(made.state_dict())
    assert other.max_steps == 12
    assert lrs(optimizer) == [peak * made.factor(7) for peak in PEAKS]
    assert made.state_dict() == other.state_dict()


def test_a_moved_horizon_holds_at_once() -> None:
    made, optimizer = schedule()
    for _ in range(8):
        made.step()
    made.move_horizon(20)
    assert lrs(optimizer) == [peak * schedule(max_steps=20)[0].factor(8) for peak in PEAKS]


def test_matrices_decay_and_vectors_do_not(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    model[0].weight.requires_grad_(True)
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    optimizer = build_optimizer(
        torch.nn.Sequential(model, frozen), tiny_config(tmp_path, **{"optimizer.lr": 0.5})
    )
    decay = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    assert decay == {id(p): 0.1 if p.dim() == 2 else 0.0 for p in model.parameters()}
    assert {group["lr"] for group in optimizer.param_groups} == {0.5}


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        (torch.eye(3).to_sparse(), "is sparse_coo"),
        (torch.ones(3).to(torch.float8_e4m3fn), "is of float8_e4m3fn"),
        (torch.ones(1).expand(3), "is an expanded view"),
    ],
)
def test_a_parameter_that_no_optimizer_can_update_is_refused(
    parameter: torch.Tensor, said: str
) -> None:
    model = nn.Linear(2, 2)
    model.odd = nn.Parameter(parameter)
    with pytest.raises(ConfigError, match=f"the parameter odd {said}"):
        build_optimizer(model, SpeedtronicConfig())
    model.odd.requires_grad_(False)
    build_optimizer(model, SpeedtronicConfig())
    model.table = nn.Embedding(3, 2, sparse=True)
    with pytest.raises(ConfigError, match="table is a Embedding with sparse=True"):
        build_optimizer(model, SpeedtronicConfig())
