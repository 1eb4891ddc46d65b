"""Choose the device and the number format of a run."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from speedtronic.errors import DeviceError


@dataclass(frozen=True)
class Precision:
    """Describes how the forward pass computes. `mode`: `fp32`, `bf16` or `fp16`."""

    mode: str
    device: torch.device

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of one forward pass."""
        if self.mode == "fp32":
            return nullcontext()
        dtype = torch.bfloat16 if self.mode == "bf16" else torch.float16
        return torch.autocast(self.device.type, dtype=dtype)

    def grad_scaler(self) -> torch.amp.GradScaler | None:
        """fp16 needs loss scaling; the other modes have the range of fp32."""
        return torch.amp.GradScaler(self.device.type) if self.mode == "fp16" else None


def resolve_device(name: str) -> torch.device:
    """Return the device `name`; `auto` is the first available of cuda, mps and cpu.

    Raises:
        DeviceError: it is not on this machine.
    """
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, there in present.items() if there)
    if not present.get(name, False):
        there = ", ".join(kind for kind, is_there in present.items() if is_there)
        raise DeviceError(f"run.device: {name!r} is not on this machine; found: {there}")
    return torch.device(name)


def resolve_precision(mode: str, device: torch.device) -> Precision:
    """Choose the precision for `mode`; `auto` is bf16 on a CUDA device that has it, else fp32."""
    if mode == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        mode = "bf16" if has_bf16 else "fp32"
    return Precision(mode, device)
