"""What forward passes changed is put back, or said to be beyond that."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from speedtronic.training.module_snapshot import ForwardSnapshot


class Own(nn.Module):
    """Changes something of itself at each call; `change` says what."""

    def __init__(self, change: "Callable[[Own], object]") -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.weight = nn.Parameter(torch.ones(3))
        self.calls = 0
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.register_buffer("mean", torch.ones(3))
        object.__setattr__(self, "_change", change)

    def forward(self, x: Tensor) -> Tensor:
        self._change(self)
        return self.norm(x) * self.weight


def call(model: nn.Module) -> None:
    model(torch.randn(4, 3))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: None,
        lambda m: m.mean.add_(1),
        lambda m: setattr(m, "mean", torch.zeros(3)),
        lambda m: m.norm.eval(),
    ],
    ids=["running means", "in place", "replaced", "mode"],
)
def test_puts_back(change: Callable[[Own], object]) -> None:
    model = Own(change)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    undo = ForwardSnapshot(model)
    call(model)
    call(model)
    assert undo.can_restore
    undo.restore()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "calls", m.calls + 1),
        lambda m: m.mask.zero_(),
        lambda m: setattr(m, "mask", torch.zeros(3)),
        lambda m: m.weight.requires_grad_(False),
        lambda m: m.__dict__.setdefault("rng", random.Random(0)),
    ],
    ids=["a count", "a mask", "another mask", "frozen", "something unknown"],
)
def test_says_when_it_cannot(change: Callable[[Own], object]) -> None:
    model = Own(change)
    undo = ForwardSnapshot(model)
    call(model)
    assert not undo.can_restore


def test_parameters_that_a_forward_pass_moves() -> None:
    def move(model: Own) -> None:
        with torch.no_grad():
            model.weight.mul_(2)

    model = Own(move)
    undo = ForwardSnapshot(model)
    call(model)
    assert not undo.can_restore


def test_extra_state_cannot_be_seen() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> int:
            return 0

        def set_extra_state(self, state: int) -> None:
            pass

    assert not ForwardSnapshot(Extra(3, 3)).can_restore
