"""What decides a model's forward pass and is in no `state_dict`."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from speedtronic.errors import RestoreError, UnsavableError
from speedtronic.training.values import (
    MAX_TENSOR_BYTES,
    SCALARS,
    Look,
    Own,
    TransientError,
    comparable,
    from_saved,
    generator_state,
    num_bytes,
    same_bits,
    set_generator_state,
    to_saved,
)
from speedtronic.training.weights import assign_buffer, kind_of, persistent_buffers

logger = logging.getLogger(__name__)

# Torch's own: parameters, hooks, the mode; the last two are made by compiling.
PRIVATE = {*vars(nn.Module()), "_compiled_call_impl", "_forward_hooks_with_kwargs"}


class ModuleState:
    """Follows what changes in a model besides its `state_dict`, and brings it back.

    That is, since the factory returned: values of attributes, random generators among them,
    buffers that are not persistent, and `requires_grad`. What did not change is not kept, so most
    models have nothing here.

    Args:
        model: as its factory made it, on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._start = _Start(model)
        self._named: set[str] = set()
        self._room_bytes = 0

    def state_dict(self) -> dict[str, Any]:
        """What differs from the start, in the kinds that a checkpoint can hold; may be empty.

        An attribute that changed and cannot be held is named in a warning, once.

        Raises:
            UnsavableError: the model has other parameters than at its start, so that no resume
                could load its weights.
        """
        self._refuse_other_parameters()
        look, start = Look(own=Own.of(self._model)), self._start
        self._room_bytes = MAX_TENSOR_BYTES
        flags = {name: p.requires_grad for name, p in self._model.named_parameters()}
        replaced = {}
        for name, (module, key) in persistent_buffers(self._model).items():
            at_start = start.kinds.get(name, "absent")
            if kind_of(module._buffers[key]) != at_start:
                replaced[name] = at_start
        found = {
            "attributes": self._attributes(look),
            "generators": self._generators(look),
            "buffers": dict(self._buffers()),
            "replaced": replaced,
            "requires_grad": {n: x for n, x in flags.items() if x != start.flags[n]},
        }
        return {key: value for key, value in found.items() if value}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Bring back what `state_dict` returned, into a model as its factory made it.

        The persistent buffers under `replaced` are not touched: they are loaded with the weights.

        Raises:
            RestoreError: the model lacks a module, a parameter or a generator of those saved.
        """
        try:
            for name, flag in saved.get("requires_grad", {}).items():
                self._model.get_parameter(name).requires_grad_(flag)
            for name, value in saved.get("buffers", {}).items():
                assign_buffer(self._model, name, value, persistent=False)
            self._load_attributes(saved.get("attributes", {}))
            self._load_generators(saved.get("generators", {}))
        except (AttributeError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise RestoreError(
                f"the model's attributes do not fit the checkpoint: {error}"
            ) from error

    def count_as_frozen(self, names: Iterable[str]) -> None:
        """Let these parameters count as frozen from the start."""
        self._start.flags.update(dict.fromkeys(names, False))

    def _refuse_other_parameters(self) -> None:
        now = _shapes(self._model)
        if now == self._start.shapes:
            return
        name = min(
            name
            for name in {*now, *self._start.shapes}
            if now.get(name) != self._start.shapes.get(name)
        )
        raise UnsavableError(
            f"model: the parameter {name} was made, removed or reshaped after the factory "
            "returned, so no resume could load it; make all parameters in the factory"
        )

    def _attributes(self, look: Look) -> dict[str, Any]:
        found = {}
        for name, module in self._model.named_modules():
            start = self._start.attributes.get(name, {})
            changed, unsavable = self._changed(name, module, start, look)
            gone = [key for key in start if key not in vars(module)]
            if unsavable:
                # Something made on first use. The flags that say so must not come back without it.
                continue
            if changed or gone:
                found[name] = {"set": changed, "gone": gone}
        return found

    def _changed(
        self, name: str, module: nn.Module, start: dict[str, Any], look: Look
    ) -> tuple[dict[str, Any], bool]:
        changed, unsavable = {}, False
        for key, value in _attributes_of(module):
            raw, seen = start.get(key, (_MISSING, None))
            if type(value) in SCALARS:
                if value is raw or (type(value) is type(raw) and value == raw):
                    continue
            else:
                now = look.at(f"{name}:{key}", value)
                if now == "tensor" or (now == seen and raw is not _MISSING):
                    continue
            path = f"{name}.{key}".lstrip(".")
            try:
                saved = to_saved(value, path)
                self._refuse_large(saved, path)
                changed[key] = saved
            except TransientError:
                continue
            except UnsavableError as error:
                unsavable = unsavable or raw is _MISSING or raw is None
                self._warn(path, error)
        return changed, unsavable

    def _refuse_large(self, saved: Any, path: str) -> None:
        self._room_bytes -= _num_bytes(saved)
        if self._room_bytes < 0:
            limit = MAX_TENSOR_BYTES // 2**20
            raise UnsavableError(f"{path} holds tensors, with which attributes exceed {limit} MiB")

    def _generators(self, look: Look) -> dict[str, Any]:
        found = {}
        for path, generator in look.generators.items():
            start = self._start.generators.get(path)
            if start is None:  # made later: kept as an attribute
                continue
            try:
                state = generator_state(generator)
            except (NotImplementedError, UnsavableError):  # as SystemRandom, which has none
                continue
            if not _same(state, start):
                found[path] = state
        return found

    def _buffers(self) -> Iterator[tuple[str, Tensor | None]]:
        own = persistent_buffers(self._model)
        for name, module, key in _buffers_of(self._model):
            if name in own:
                continue
            value, start = module._buffers[key], self._start.buffers.get(name)
            if value is start:
                continue
            if value is None:
                yield name, None
            elif start is None or not (comparable(value) and same_bits(value, start)):
                try:
                    to_saved(value.detach(), name)
                except UnsavableError as error:
                    self._warn(name, error)
                else:
                    yield name, value.detach()

    def _load_attributes(self, saved: dict[str, Any]) -> None:
        restored = []
        for name, attributes in saved.items():
            fields = vars(self._model.get_submodule(name))
            for key in attributes["gone"]:
                fields.pop(key, None)
            for key, value in attributes["set"].items():
                made = from_saved(value)
                fields[key] = _into(fields.get(key), made)
                restored.append((fields, key, value))
        # Two attributes that were one object at the start, and are no longer, come apart again.
        look = Look()
        for fields, key, value in restored:
            made = from_saved(value)
            if look.at("", fields[key]) != look.at("", made):
                fields[key] = made

    def _load_generators(self, saved: dict[str, Any]) -> None:
        if not saved:
            return
        look = Look(own=Own.of(self._model))
        for name, module in self._model.named_modules():
            for key, value in _attributes_of(module):
                if type(value) not in SCALARS:
                    look.at(f"{name}:{key}", value)
        for path, state in saved.items():
            if path not in look.generators:
                raise KeyError(f"no random generator at {path}")
            set_generator_state(look.generators[path], state)

    def _warn(self, path: str, error: Exception) -> None:
        if path in self._named:
            return
        self._named.add(path)
        logger.warning(
            "model: %s. It changed since the factory returned and is in no checkpoint, so a "
            "resumed run may differ; keep it in a buffer, in a plain attribute or give the module "
            "get_extra_state and set_extra_state",
            error,
        )


class _Start:
    """A model as its factory made it."""

    def __init__(self, model: nn.Module) -> None:
        look = Look(keep=True, own=Own.of(model))
        self.attributes: dict[str, dict[str, Any]] = {}
        for name, module in model.named_modules():
            self.attributes[name] = {
                key: (value, None if type(value) in SCALARS else look.at(f"{name}:{key}", value))
                for key, value in _attributes_of(module)
            }
        self.generators: dict[str, Any] = {}
        for path, generator in look.generators.items():
            try:
                self.generators[path] = generator_state(generator)
            except (NotImplementedError, UnsavableError):
                continue
        own = persistent_buffers(model)
        self.kinds = {name: kind_of(module._buffers[key]) for name, (module, key) in own.items()}
        self.buffers = {
            name: _kept(module._buffers[key])
            for name, module, key in _buffers_of(model)
            if name not in own
        }
        self.flags = {name: p.requires_grad for name, p in model.named_parameters()}
        self.shapes = _shapes(model)


def _kept(buffer: Tensor | None) -> Tensor | None:
    """A copy to compare with; of a large one, itself, so that only another in its place counts."""
    if buffer is None or not comparable(buffer):
        return buffer
    return buffer.detach().clone()


_MISSING = object()


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {n: tuple(p.shape) for n, p in model.named_parameters(remove_duplicate=False)}


def _attributes_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(module).items()):
        # What cached_property keeps follows from the rest.
        if key not in PRIVATE and not isinstance(getattr(type(module), key, None), cached_property):
            yield key, value


def _buffers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for prefix, module in model.named_modules():
        for key in module._buffers:
            yield f"{prefix}.{key}".lstrip("."), module, key


def _num_bytes(saved: Any) -> int:
    if isinstance(saved, Tensor):
        return num_bytes(saved)
    items = saved.values() if isinstance(saved, dict) else saved
    return sum(map(_num_bytes, items)) if isinstance(saved, dict | list | tuple) else 0


def _same(a: Any, b: Any) -> bool:
    look = Look()
    return bool(look.at("", a) == look.at("", b))


def _into(live: Any, made: Any) -> Any:
    """`made`, in the object that is there already if that can be, for others may hold it too."""
    if type(live) is not type(made):
        return made
    if isinstance(live, list):
        inner = [_into(*pair) for pair in zip(live, made, strict=False)]
        live[:] = inner + made[len(inner) :]
    elif isinstance(live, dict):
        items = [(key, _into(live.get(key), value)) for key, value in made.items()]
        live.clear()
        live.update(items)
    elif isinstance(live, set):
        live.clear()
        live.update(made)
    elif isinstance(live, deque) and live.maxlen == made.maxlen:
        live.clear()
        live.extend(made)
    elif type(live) is Tensor and kind_of(live) == kind_of(made) and live.is_leaf:
        try:
            with torch.no_grad():
                live.copy_(made)
        except RuntimeError:  # it overlaps itself, or lies in memory that cannot be written
            return made.to(live.device)
    else:
        return made
    return live
