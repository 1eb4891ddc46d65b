"""Save and load what decides a model's forward pass and is in no `state_dict`."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from speedtronic.errors import RestoreError, UnsavableError
from speedtronic.training.module_baseline import (
    ModuleBaseline,
    attributes_of,
    buffers_of,
    parameter_shapes,
)
from speedtronic.training.value_comparison import (
    MAX_TENSOR_BYTES,
    SCALARS,
    ModelParts,
    ValueComparison,
    comparable,
    num_bytes,
    same_bits,
)
from speedtronic.training.value_encoding import (
    TransientError,
    decode_value,
    encode_value,
    generator_state,
    set_generator_state,
)
from speedtronic.training.weights import assign_buffer, assign_into, kind_of, persistent_buffers

logger = logging.getLogger(__name__)


class ModuleState:
    """Saves what changed in a model besides its `state_dict`, and restores it.

    That is, since the factory returned: values of attributes, random generators among them,
    buffers that are not persistent, and `requires_grad`. What did not change is not kept, so most
    models have nothing here.

    Args:
        model: as its factory made it, on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._baseline = ModuleBaseline(model)
        self._named: set[str] = set()
        self._room_bytes = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what differs from the baseline, encoded for a checkpoint; may be empty.

        An attribute that changed and cannot be held is named in a warning, once.

        Raises:
            UnsavableError: the model has other parameters than at its start, so that no resume
                could load its weights.
        """
        self._refuse_other_parameters()
        comparison, start = ValueComparison(own=ModelParts.of(self._model)), self._baseline
        self._room_bytes = MAX_TENSOR_BYTES
        flags = {name: p.requires_grad for name, p in self._model.named_parameters()}
        replaced = {}
        for name, (module, key) in persistent_buffers(self._model).items():
            at_start = start.kinds.get(name, "absent")
            if kind_of(module._buffers[key]) != at_start:
                replaced[name] = at_start
        found = {
            "attributes": self._attributes(comparison),
            "generators": self._generators(comparison),
            "buffers": dict(self._buffers()),
            "replaced": replaced,
            "requires_grad": {n: x for n, x in flags.items() if x != start.flags[n]},
        }
        return {key: value for key, value in found.items() if value}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned into a model as its factory made it.

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
        """Count these parameters as frozen in the baseline."""
        self._baseline.flags.update(dict.fromkeys(names, False))

    def _refuse_other_parameters(self) -> None:
        now = parameter_shapes(self._model)
        if now == self._baseline.shapes:
            return
        name = min(
            name
            for name in {*now, *self._baseline.shapes}
            if now.get(name) != self._baseline.shapes.get(name)
        )
        raise UnsavableError(
            f"model: the parameter {name} was made, removed or reshaped after the factory "
            "returned, so no resume could load it; make all parameters in the factory"
        )

    def _attributes(self, comparison: ValueComparison) -> dict[str, Any]:
        found = {}
        for name, module in self._model.named_modules():
            start = self._baseline.attributes.get(name, {})
            changed, unsavable = self._changed(name, module, start, comparison)
            gone = [key for key in start if key not in vars(module)]
            if unsavable:
                # Something made on first use. The flags that say so must not come back without it.
                continue
            if changed or gone:
                found[name] = {"set": changed, "gone": gone}
        return found

    def _changed(
        self, name: str, module: nn.Module, start: dict[str, Any], comparison: ValueComparison
    ) -> tuple[dict[str, Any], bool]:
        changed, unsavable = {}, False
        for key, value in attributes_of(module):
            raw, seen = start.get(key, (_MISSING, None))
            if type(value) in SCALARS:
                if value is raw or (type(value) is type(raw) and value == raw):
                    continue
            else:
                now = comparison.snapshot(f"{name}:{key}", value)
                if now == "tensor" or (now == seen and raw is not _MISSING):
                    continue
            path = f"{name}.{key}".lstrip(".")
            try:
                saved = encode_value(value, path)
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

    def _generators(self, comparison: ValueComparison) -> dict[str, Any]:
        found = {}
        for path, generator in comparison.generators.items():
            start = self._baseline.generators.get(path)
            if start is None:  # made later: kept as an attribute
                continue
            try:
                state = generator_state(generator)
            except (NotImplementedError, UnsavableError):  # as SystemRandom, which has none
                continue
            if not _is_same(state, start):
                found[path] = state
        return found

    def _buffers(self) -> Iterator[tuple[str, Tensor | None]]:
        own = persistent_buffers(self._model)
        for name, module, key in buffers_of(self._model):
            if name in own:
                continue
            value, start = module._buffers[key], self._baseline.buffers.get(name)
            if value is start:
                continue
            if value is None:
                yield name, None
            elif start is None or not (comparable(value) and same_bits(value, start)):
                try:
                    encode_value(value.detach(), name)
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
                made = decode_value(value)
                fields[key] = assign_into(fields.get(key), made)
                restored.append((fields, key, value))
        # Two attributes that were one object at the start, and are no longer, come apart again.
        comparison = ValueComparison()
        for fields, key, value in restored:
            made = decode_value(value)
            if comparison.snapshot("", fields[key]) != comparison.snapshot("", made):
                fields[key] = made

    def _load_generators(self, saved: dict[str, Any]) -> None:
        if not saved:
            return
        comparison = ValueComparison(own=ModelParts.of(self._model))
        for name, module in self._model.named_modules():
            for key, value in attributes_of(module):
                if type(value) not in SCALARS:
                    comparison.snapshot(f"{name}:{key}", value)
        for path, state in saved.items():
            if path not in comparison.generators:
                raise KeyError(f"no random generator at {path}")
            set_generator_state(comparison.generators[path], state)

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


_MISSING = object()


def _num_bytes(saved: Any) -> int:
    if isinstance(saved, Tensor):
        return num_bytes(saved)
    items = saved.values() if isinstance(saved, dict) else saved
    return sum(map(_num_bytes, items)) if isinstance(saved, dict | list | tuple) else 0


def _is_same(a: Any, b: Any) -> bool:
    comparison = ValueComparison()
    return bool(comparison.snapshot("", a) == comparison.snapshot("", b))
