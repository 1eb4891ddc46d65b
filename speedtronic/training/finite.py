"""Looking for NaN and infinity before a state is kept."""

from collections.abc import Mapping

import torch
from torch import Tensor

from speedtronic.errors import NonFiniteError


def refuse_non_finite(weights: Mapping[str, Tensor], *, step: int, loss: float | None) -> None:
    """Look whether every parameter and buffer is finite.

    One sum a tensor, waited for once; only where a sum is not finite, which finite numbers can
    bring about too, is the tensor looked at in full.

    Raises:
        NonFiniteError: names step, loss and the first parameter that is not.
    """
    floats = {name: x for name, x in weights.items() if torch.is_floating_point(x)}
    if not floats:
        return
    device = next(iter(floats.values())).device
    sums = torch.stack([x.sum(dtype=torch.float32).to(device) for x in floats.values()])
    if bool(torch.isfinite(sums).all()):
        return
    for name, x in floats.items():
        if not bool(torch.isfinite(x).all()):
            raise NonFiniteError(
                f"{name} is not finite after step {step} (loss {loss}); nothing was saved for it. "
                "Lower optimizer.lr or set optimizer.grad_clip, then resume from the last "
                "checkpoint"
            )
