"""Refuse NaN and infinity before a state is saved."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speedtronic.errors import NonFiniteError

# The bits that are all set in a NaN or an infinity, of the types that NumPy sums slowly or not.
EXPONENT = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}
PIECE = 2**18
WITHOUT_NAN = {torch.float4_e2m1fn_x2}


class FiniteCheck:
    """Refuses parameters and buffers that became NaN or infinite.

    A buffer may be so on purpose, such as a mask of minus infinity: what was not finite when the
    model was made is not looked at, and one made later, of another shape, only for NaN.

    Args:
        model: as its factory made it.
    """

    def __init__(self, model: nn.Module) -> None:
        state = model.state_dict()
        tensors = {k: x for k, x in state.items() if isinstance(x, Tensor)}
        self._shapes = {k: None if x.is_nested else x.shape for k, x in tensors.items()}
        self._buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
        floats = _floats({name: state[name] for name in self._buffers if name in state})
        self._on_purpose = {name for name, x in floats.items() if _holds(x, infinity=True)}

    def __call__(self, weights: Mapping[str, Any], *, step: int, loss: float | None) -> list[str]:
        """Check that every parameter and buffer in a state dict is finite.

        One sum a tensor; only where a sum is not finite, which finite numbers can bring about too,
        is the tensor looked at in full. On the CPU NumPy sums, in the calling thread alone: torch
        would start a second team of threads beside the one that trains.

        Returns:
            The names of those that may be infinite on purpose, for whoever looks at the checkpoint.

        Raises:
            NonFiniteError: names step, loss and the first one that is not.
        """
        floats = {k: x for k, x in _floats(weights).items() if k not in self._on_purpose}
        elsewhere = {name: x for name, x in floats.items() if x.device.type != "cpu"}
        doubtful = {name for name, x in floats.items() if name not in elsewhere and not _sums(x)}
        if elsewhere and not _sums_elsewhere(list(elsewhere.values())):
            doubtful.update(elsewhere)
        for name, x in floats.items():
            if name in doubtful and _holds(x, infinity=not self._made_later(name, weights[name])):
                raise NonFiniteError(
                    f"{name} is not finite after step {step} (loss {loss}); nothing was saved for "
                    "it. Lower optimizer.lr or set optimizer.grad_clip, then resume from the last "
                    "checkpoint"
                )
        return sorted({*self._on_purpose & weights.keys(), *doubtful})

    def _made_later(self, name: str, x: Tensor) -> bool:
        if name not in self._shapes:
            return True
        return name in self._buffers and self._shapes[name] != x.shape


def _floats(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the numbers that can be NaN as real strided tensors; other values are left out."""
    floats = {}
    for name, x in weights.items():
        if not isinstance(x, Tensor) or x.is_meta or x.is_nested or x.is_quantized:
            continue
        x = x.detach()
        if x.layout != torch.strided:
            x = x._values() if x.layout == torch.sparse_coo else x.values()
        if x.is_complex():
            x = torch.view_as_real(x.resolve_conj())
        if x.is_floating_point() and x.dtype not in WITHOUT_NAN:
            floats[name] = x.float() if x.dtype.itemsize == 1 else x
    return floats


def _holds(x: Tensor, *, infinity: bool) -> bool:
    """Whether a NaN, or with `infinity` one of either, is in `x`."""
    return bool((~torch.isfinite(x) if infinity else torch.isnan(x)).any())


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
    """Check tensors on other devices, with one synchronization."""
    device = tensors[0].device
    sums = torch.stack([x.sum(dtype=torch.float32).to(device) for x in tensors])
    return bool(torch.isfinite(sums).all())
