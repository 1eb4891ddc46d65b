"""Looking for NaN and infinity before a state is kept."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from speedtronic.errors import NonFiniteError

# The bits that are all set in a NaN or an infinity, of the types that NumPy sums slowly or not.
EXPONENT = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
PIECE = 2**18


def refuse_non_finite(weights: Mapping[str, Tensor], *, step: int, loss: float | None) -> None:
    """Look whether every parameter and buffer is finite.

    One sum a tensor; only where a sum is not finite, which finite numbers can bring about too, is
    the tensor looked at in full. On the CPU NumPy sums, in the calling thread alone: torch would
    start a second team of threads beside the one that trains.

    Raises:
        NonFiniteError: names step, loss and the first parameter that is not.
    """
    floats = {name: x.detach() for name, x in weights.items() if torch.is_floating_point(x)}
    elsewhere = {name: x for name, x in floats.items() if x.device.type != "cpu"}
    doubtful = {name for name, x in floats.items() if name not in elsewhere and not _sums(x)}
    if elsewhere and not _sums_elsewhere(list(elsewhere.values())):
        doubtful.update(elsewhere)
    for name, x in floats.items():
        if name in doubtful and not bool(torch.isfinite(x).all()):
            raise NonFiniteError(
                f"{name} is not finite after step {step} (loss {loss}); nothing was saved for it. "
                "Lower optimizer.lr or set optimizer.grad_clip, then resume from the last "
                "checkpoint"
            )


def _sums(x: Tensor) -> bool:
    """Whether a sum over `x`, or what stands for it, is finite."""
    flat = x.contiguous().reshape(-1)
    if x.dtype in EXPONENT:
        mask = EXPONENT[x.dtype]
        bits = flat.view(torch.int16).numpy()
        pieces = (bits[start : start + PIECE] for start in range(0, bits.size, PIECE))
        return not any(bool(((piece & mask) == mask).any()) for piece in pieces)
    if x.dtype not in (torch.float32, torch.float64):
        return False
    values: np.ndarray[Any, Any] = flat.numpy()
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum()))


def _sums_elsewhere(tensors: list[Tensor]) -> bool:
    """The same on other devices, waited for once."""
    device = tensors[0].device
    sums = torch.stack([x.sum(dtype=torch.float32).to(device) for x in tensors])
    return bool(torch.isfinite(sums).all())
