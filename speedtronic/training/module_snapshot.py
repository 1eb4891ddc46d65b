"""Undo the forward passes of an update that is given up."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn

UNCHANGING = (type(None), bool, int, float, complex, str, bytes, type, FunctionType)
OURS = ("torch.nn.", "speedtronic.model.")  # modules that keep nothing besides tensors
OF_ANY_MODULE = {*vars(nn.Module()), "_compiled_call_impl", "_forward_hooks_with_kwargs"}


class ForwardSnapshot:
    """Copies what forward passes may change of a model, so that it can be restored.

    That is its persistent buffers, such as the running means of a batch norm, and the modes of its
    modules. A model that changed anything else, or keeps something of which that cannot be seen,
    is not put back.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modes = [(module, module.training) for module in model.modules()]
        self._buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module, name, buffer in _buffers(model, persistent=True)
        ]
        self._rest = list(_rest(model))

    @property
    def can_restore(self) -> bool:
        """Whether `restore` brings the model back to the very state it was in."""
        if not all(x.layout is torch.strided and x.is_contiguous() for *_, x in self._buffers):
            return False
        now = list(_rest(self._model))
        return now == self._rest and (None, None) not in now

    @torch.no_grad()
    def restore(self) -> None:
        """Restore buffers and modes."""
        for module, training in self._modes:
            module.training = training
        for module, name, buffer, kept in self._buffers:  # torch's batch norm counts no version
            module._buffers[name] = buffer.copy_(kept)


def _buffers(model: nn.Module, *, persistent: bool) -> Iterator[tuple[nn.Module, str, Any]]:
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and persistent != (name in module._non_persistent_buffers_set):
                yield module, name, buffer


def _rest(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield everything else in pairs that differ if it changed; None if that cannot be seen."""
    for parameter in model.parameters():
        yield id(parameter), (parameter._version, parameter.requires_grad)
    for _, _, buffer in _buffers(model, persistent=False):
        yield id(buffer), buffer._version
    for module in model.modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield None, None
        if type(module).__module__.startswith(OURS):
            continue
        for key, value in vars(module).items():
            if key in OF_ANY_MODULE:
                continue
            if isinstance(value, torch.Tensor):
                yield key, (id(value), value._version)
            else:
                seen = isinstance(value, UNCHANGING)
                yield (key, (type(value), value)) if seen else (None, None)
