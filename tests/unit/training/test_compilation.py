import pytest
import torch
from torch import nn

from speedtronic.training.compilation import Compiled

CPU = torch.device("cpu")


class Failing:
    def __init__(self, model: nn.Module) -> None:
        pass

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(5)  # a failed attempt may have drawn
        raise RuntimeError("no compiler here\nand a long story")


def test_a_failing_compile_warns_once_and_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "compile", Failing)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    compiled = Compiled(model, CPU)
    x = torch.ones(4, 3)
    torch.manual_seed(0)
    got = [compiled(x), compiled(x)]
    torch.manual_seed(0)
    assert torch.equal(got[0], model(x))
    assert torch.equal(got[1], model(x))
    assert [r.getMessage() for r in caplog.records] == [
        "compile: failed with RuntimeError: no compiler here; going on without it"
    ]


def test_an_error_of_the_models_own_is_not_swallowed() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        Compiled(Broken(), CPU)(torch.ones(1))


def test_the_names_of_parameters_stay_as_they_are() -> None:
    model = nn.Linear(2, 2)
    Compiled(model, CPU)
    assert list(model.state_dict()) == ["weight", "bias"]
