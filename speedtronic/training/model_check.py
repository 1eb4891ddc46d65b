"""Refuse, before the first step, a model whose state no checkpoint could restore."""

import io
from typing import Any

import torch
from torch import Tensor, nn

from speedtronic.checkpoint import codec
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.writer import HostBuffers
from speedtronic.errors import CheckpointError, UnsavableError
from speedtronic.training.weights import model_state

ORDINARY = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


def refuse_unsavable(model: nn.Module) -> None:
    """Save and load whatever in the model's state is not an ordinary tensor, in memory.

    Raises:
        UnsavableError: names the entry, or the module, that would not come back as it was.
    """
    for path, module in model.named_modules():
        kind = type(module)
        if (
            kind.get_extra_state is not nn.Module.get_extra_state
            and kind.set_extra_state is nn.Module.set_extra_state
        ):
            raise UnsavableError(
                f"model: {path or 'the model'} ({kind.__name__}) has get_extra_state and no "
                "set_extra_state, so no resume could bring back what it returns; define both"
            )
    for name, value in model_state(model).items():
        if _ordinary(value):
            continue
        try:
            _round_trip({name: value})
        except (CheckpointError, UnsavableError, RuntimeError) as error:
            what = _described(value)
            reason = str(error).splitlines()[0]
            raise UnsavableError(
                f"model: a checkpoint cannot hold {name}, {what}: {reason}. Keep it in an ordinary "
                "tensor, or make it anew in the factory and register it with persistent=False"
            ) from error


def _ordinary(value: Any) -> bool:
    return (
        type(value) is Tensor
        and value.dtype in ORDINARY
        and value.layout == torch.strided
        and not (value.is_meta or value.is_nested or value.is_neg())
    )


def _round_trip(entry: dict[str, Any]) -> None:
    file = io.BytesIO()
    before = state_digest({"model": entry})
    codec.encode_payload(HostBuffers().copy({"model": entry}), file)
    after = state_digest(codec.decode_payload(file.getvalue()))
    if before != after:
        raise UnsavableError("it is not the same after a save and a load")


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = "tensor" if type(value) is Tensor else type(value).__name__
    nested = "nested " if value.is_nested else ""
    return f"a {nested}{kind} of {value.dtype}, {value.layout}".replace("torch.", "")
