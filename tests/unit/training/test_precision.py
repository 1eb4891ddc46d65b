"""Which device and number format a run uses."""

import pytest
import torch

from speedtronic.errors import DeviceError
from speedtronic.training.precision import resolve_device, resolve_precision

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"run\.device: 'cuda' .* found: cpu$"):
        resolve_device("cuda")
    assert resolve_device("auto") == resolve_device("cpu") == CPU


@pytest.mark.parametrize(
    ("mode", "resolved", "dtype"),
    [
        ("auto", "fp32", torch.float32),
        ("fp32", "fp32", torch.float32),
        ("bf16", "bf16", torch.bfloat16),
    ],
)
def test_the_forward_pass_computes_in_the_format_asked_for(
    mode: str, resolved: str, dtype: torch.dtype
) -> None:
    precision = resolve_precision(mode, CPU)
    assert precision.mode == resolved
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert precision.grad_scaler() is None


def test_fp16_scales_its_gradients() -> None:
    assert resolve_precision("fp16", CPU).grad_scaler() is not None
