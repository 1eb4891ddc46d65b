from pathlib import Path

import pytest
import torch
from torch import nn

from speedtronic.errors import NonFiniteError
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.finite_check import FiniteCheck
from tests.recipes import exact_recipe, newest


def holder(**buffers: torch.Tensor) -> nn.Module:
    """A module with these buffers."""
    module = nn.Module()
    for name, value in buffers.items():
        module.register_buffer(name, value)
    return module


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_parameter_that_is_not_finite_is_named(value: float, dtype: torch.dtype) -> None:
    bad = torch.zeros(3, 4, dtype=dtype)
    bad[2, 1] = value
    weights = {"good": torch.ones(5), "count": torch.tensor(3), "bad": bad, "later": bad}
    check = FiniteCheck(holder(**{name: torch.ones_like(x) for name, x in weights.items()}))
    with pytest.raises(NonFiniteError, match=r"^bad is not finite after step 7 \(loss 2\.5\)"):
        check(weights, step=7, loss=2.5)


def test_finite_numbers_whose_sum_is_not_are_kept() -> None:
    huge = torch.full((4,), torch.finfo(torch.float32).max)
    check = FiniteCheck(holder(huge=huge, steps=torch.tensor(3)))
    check({"huge": huge, "steps": torch.tensor(3)}, step=1, loss=None)
    check({"steps": torch.tensor(3)}, step=1, loss=None)


def test_weights_that_turn_to_nan_under_a_finite_loss_are_never_saved(tmp_path: Path) -> None:
    """The loss is of the weights before the update; the gradient alone can be NaN."""
    config = exact_recipe(tmp_path, **{"checkpoint.every_steps": 1, "optimizer.grad_clip": None})
    train_from_config(config, max_steps=3)
    with build_runtime(config, resume=True) as runtime:
        weight = next(runtime.state.model.parameters())
        weight.register_hook(lambda gradient: torch.full_like(gradient, float("nan")))
        with pytest.raises(NonFiniteError, match="is not finite after step 4"):
            runtime.train(8)
    assert newest(config).step == 3
    assert train_from_config(config, resume=True, max_steps=4).steps == 4


NAN, INF = float("nan"), float("inf")


def test_a_buffer_that_is_not_finite_on_purpose_stands_in_no_way() -> None:
    mask = torch.full((3, 3), -INF).triu(1)
    check = FiniteCheck(holder(mask=mask, best=torch.tensor(NAN), made=torch.zeros(0)))
    check({"mask": mask, "best": torch.tensor(NAN), "made": mask}, step=1, loss=None)
    check({"mask": mask * 2, "later": mask}, step=1, loss=None)
    for name in ("made", "later"):
        with pytest.raises(NonFiniteError, match=f"^{name} is not finite"):
            check({name: torch.tensor(NAN)}, step=1, loss=None)


def test_a_parameter_that_was_not_finite_from_the_start_is_still_refused() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.tensor([INF]))
    with pytest.raises(NonFiniteError, match=r"^weight is not finite"):
        FiniteCheck(module)(module.state_dict(), step=1, loss=None)


@pytest.mark.parametrize(
    "bad",
    [
        torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn),
        torch.tensor([1.0, INF]).to(torch.float8_e5m2),
        torch.tensor([complex(0, INF)]),
        torch.tensor([complex(0, NAN)]).conj(),
        torch.tensor([[0.0, NAN]]).to_sparse(),
        torch.tensor([[0.0, NAN]]).to_sparse_csr(),
        torch.tensor(INF),
        torch.tensor([INF]).expand(4),
    ],
)
def test_numbers_of_every_kind_are_looked_at(bad: torch.Tensor) -> None:
    check = FiniteCheck(holder(bad=torch.zeros(bad.shape)))
    with pytest.raises(NonFiniteError, match=r"^bad is not finite"):
        check({"bad": bad}, step=1, loss=None)


def test_what_cannot_be_nan_is_passed_by() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    float4 = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    state = {"a": quantized, "b": float4, "c": torch.empty(0), "d": {"text": "x"}, "e": None}
    FiniteCheck(holder(a=quantized, b=float4))(state, step=1, loss=None)
