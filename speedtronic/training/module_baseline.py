"""Record what a model was when its factory returned, so that later changes are found."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from speedtronic.errors import UnsavableError
from speedtronic.training.value_comparison import SCALARS, ModelParts, ValueComparison, comparable
from speedtronic.training.value_encoding import generator_state
from speedtronic.training.weights import kind_of, persistent_buffers

# Torch's own: parameters, hooks, the mode; the last two are made by compiling.
PRIVATE = {*vars(nn.Module()), "_compiled_call_impl", "_forward_hooks_with_kwargs"}


class ModuleBaseline:
    """Records a model's attributes, generators, buffers and shapes as its factory made them."""

    def __init__(self, model: nn.Module) -> None:
        comparison = ValueComparison(keep=True, own=ModelParts.of(model))
        self.attributes: dict[str, dict[str, Any]] = {}
        for name, module in model.named_modules():
            self.attributes[name] = {
                key: (
                    value,
                    None if type(value) in SCALARS else comparison.snapshot(f"{name}:{key}", value),
                )
                for key, value in attributes_of(module)
            }
        self.generators: dict[str, Any] = {}
        for path, generator in comparison.generators.items():
            try:
                self.generators[path] = generator_state(generator)
            except (NotImplementedError, UnsavableError):
                continue
        own = persistent_buffers(model)
        self.kinds = {name: kind_of(module._buffers[key]) for name, (module, key) in own.items()}
        self.buffers = {
            name: _comparable_copy(module._buffers[key])
            for name, module, key in buffers_of(model)
            if name not in own
        }
        self.flags = {name: p.requires_grad for name, p in model.named_parameters()}
        self.shapes = parameter_shapes(model)


def _comparable_copy(buffer: Tensor | None) -> Tensor | None:
    """Copy a buffer to compare with; a large one stays itself, so only its replacement counts."""
    if buffer is None or not comparable(buffer):
        return buffer
    return buffer.detach().clone()


def parameter_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter, tied ones under every name."""
    return {n: tuple(p.shape) for n, p in model.named_parameters(remove_duplicate=False)}


def attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each attribute of a module that is not torch's own."""
    for key, value in list(vars(module).items()):
        # What cached_property keeps follows from the rest.
        if key not in PRIVATE and not isinstance(getattr(type(module), key, None), cached_property):
            yield key, value


def buffers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield dotted name, module and name in the module of each buffer."""
    for prefix, module in model.named_modules():
        for key in module._buffers:
            yield f"{prefix}.{key}".lstrip("."), module, key
