from pathlib import Path

import pytest
import torch

from speedtronic.errors import NonFiniteError
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.finite import refuse_non_finite
from tests.recipes import exact_recipe, newest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_first_parameter_that_is_not_finite_is_named(value: float, dtype: torch.dtype) -> None:
    bad = torch.zeros(3, 4, dtype=dtype)
    bad[2, 1] = value
    weights = {"good": torch.ones(5), "count": torch.tensor(3), "bad": bad, "later": bad}
    with pytest.raises(NonFiniteError, match=r"^bad is not finite after step 7 \(loss 2\.5\)"):
        refuse_non_finite(weights, step=7, loss=2.5)


def test_finite_numbers_whose_sum_is_not_are_kept() -> None:
    huge = torch.full((4,), torch.finfo(torch.float32).max)
    refuse_non_finite({"huge": huge, "steps": torch.tensor(3)}, step=1, loss=None)
    refuse_non_finite({"steps": torch.tensor(3)}, step=1, loss=None)


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
