"""Compare the entries of a model's `state_dict` with another's, and load them."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from speedtronic.checkpoint.export import exportable
from speedtronic.errors import RestoreError
from speedtronic.training.value_comparison import same_bits, storage_address
from speedtronic.training.value_encoding import decode_value, encode_value

MAX_SHOWN = 10  # lines of a message
EXTRA = "_extra_state"  # torch's key for what get_extra_state returns


def model_state(model: nn.Module) -> dict[str, Any]:
    """Return the model's `state_dict`, with other values than tensors encoded for a checkpoint.

    Raises:
        UnsavableError: names the module whose get_extra_state returns something else.
    """
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            state[name] = encode_value(value, f"model: {_what(name)}")
    return state


def _what(name: str) -> str:
    module, _, last = name.rpartition(".")
    if last == EXTRA:
        return f"get_extra_state() of {f'the module {module}' if module else 'the model'}"
    return f"the state_dict()'s {name}"


def persistent_buffers(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Map each name in the `state_dict` to its module and name there; also those that are None."""
    return {
        f"{prefix}.{key}".lstrip("."): (module, key)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for key in module._buffers
        if key not in module._non_persistent_buffers_set
    }


def kind_of(value: Tensor | None) -> str:
    """Describe type, shape and layout of a buffer."""
    if value is None:
        return "None"
    if value.is_nested:
        return "nested"
    layout = "" if value.layout == torch.strided else f" {value.layout}"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{layout}"


def load_weights(
    model: nn.Module,
    weights: Mapping[str, Any],
    *,
    replaced: Mapping[str, str] | None = None,
    exact: bool = True,
) -> None:
    """Copy parameters and buffers into the model, every one and no other.

    Args:
        model: as its factory made it.
        weights: what `model_state` returned, of a model like this one.
        replaced: buffers that were of another kind when they were saved than at the run's start,
            with the kind of then (`kind_of`); they take the place of the model's.
        exact: False for weights from elsewhere, whose types may differ and which may lack what
            only a checkpoint can hold.

    Raises:
        RestoreError: as `refuse_unfit`; nothing was copied. Or torch cannot copy one.
    """
    replaced = replaced or {}
    refuse_unfit(model, weights, replaced=replaced, exact=exact)
    assigned, apart = set(), _apart(model, weights) if exact else set()
    for name, (module, key) in persistent_buffers(model).items():
        live = module._buffers[key]
        elsewhere = name in replaced or name in apart
        if elsewhere or (name in weights and not _takes_copy(live)):
            saved: Any = weights.get(name)
            if elsewhere or live is None or not same_bits(live, saved.to(live.device)):
                assign_buffer(model, name, saved)
            assigned.add(name)
    for name in replaced.keys() - assigned:  # registered after the start
        assign_buffer(model, name, weights[name])
        assigned.add(name)
    rest = OrderedDict((k, _loadable(x)) for k, x in weights.items() if k not in assigned)
    rest._metadata = getattr(weights, "_metadata", OrderedDict())  # type: ignore[attr-defined]
    try:
        missing = model.load_state_dict(rest, strict=False).missing_keys
    except RuntimeError as error:
        reason = str(error).splitlines()
        raise RestoreError(f"the weights do not fit the model: {reason[-1].strip()}") from error
    lacking = [name for name in missing if name not in assigned and name in weights]
    assert not lacking, lacking


def assign_buffer(
    model: nn.Module, name: str, value: Tensor | None, *, persistent: bool = True
) -> None:
    """Assign `value` to a buffer, which need not exist yet."""
    prefix, _, key = name.rpartition(".")
    module = model.get_submodule(prefix)
    live = module._buffers.get(key)
    if value is not None:
        device = live.device if live is not None else _device(model)
        value = value.to(device)
    if key in module._buffers:
        module._buffers[key] = value
    else:
        module.register_buffer(key, value, persistent=persistent)


def refuse_unfit(
    model: nn.Module,
    weights: Mapping[str, Any],
    *,
    replaced: Mapping[str, str] | None = None,
    exact: bool = True,
) -> None:
    """Check that the weights are those of the model, by name and shape.

    Raises:
        RestoreError: names the parameters that are missing, unknown or of another shape.
    """
    own, replaced = model.state_dict(), replaced or {}
    kinds = {n: kind_of(m._buffers[k]) for n, (m, k) in persistent_buffers(model).items()}
    lines = []
    for name, value in own.items():
        if kinds.get(name) == replaced.get(name, ""):
            continue
        if name in weights:
            if _shape(value) != _shape(weights[name]) and not name.endswith(EXTRA):
                stored = _shape(weights[name])
                lines.append(f"{name}: stored {stored}, the model has {_shape(value)}")
        elif exact or not (name.endswith(EXTRA) or _only_in_checkpoints(value)):
            lines.append(f"{name}: missing, the model has {_shape(value)}")
    lines += [
        f"{name}: not in the model, stored {_shape(weights[name])}"
        for name in weights
        if name not in own and kinds.get(name, "absent") != replaced.get(name)
    ]
    if lines:
        rest = [f"... and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
        shown = "\n  ".join(lines[:MAX_SHOWN] + rest)
        raise RestoreError(f"the weights do not fit the model:\n  {shown}")


def _shape(value: Any) -> str:
    nested = isinstance(value, Tensor) and value.is_nested
    plain = isinstance(value, Tensor) and not nested
    return str(list(value.shape)) if plain else "nested" if nested else type(value).__name__


def _only_in_checkpoints(value: Any) -> bool:
    return not isinstance(value, Tensor) or not exportable(value)


def _loadable(value: Any) -> Any:
    return value if isinstance(value, Tensor) else decode_value(value)


def _takes_copy(live: Tensor | None) -> bool:
    """Whether another tensor's values can be written into `live` as they are."""
    if live is None or live.layout != torch.strided or live.is_quantized:
        return False
    spread = [abs(s) for n, s in zip(live.shape, live.stride(), strict=True) if n > 1]
    return 0 not in spread and live.untyped_storage().nbytes() >= live.nbytes


def _apart(model: nn.Module, weights: Mapping[str, Any]) -> set[str]:
    """Find buffers that share memory with another entry now, but did not when saved."""
    homes: dict[int, list[str]] = {}
    for name, value in model.state_dict().items():
        if (
            isinstance(value, Tensor)
            and isinstance(weights.get(name), Tensor)
            and storage_address(value)
        ):
            homes.setdefault(storage_address(value), []).append(name)
    shared = [
        names for names in homes.values() if len({storage_address(weights[n]) for n in names}) > 1
    ]
    buffers = persistent_buffers(model)
    return {name for names in shared for name in names if name in buffers}


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def assign_into(live: Any, made: Any) -> Any:
    """Return `made`, copied into the object `live` where that can be, as others may refer to it."""
    if type(live) is not type(made):
        return made
    if isinstance(live, list):
        inner = [assign_into(*pair) for pair in zip(live, made, strict=False)]
        live[:] = inner + made[len(inner) :]
    elif isinstance(live, dict):
        items = [(key, assign_into(live.get(key), value)) for key, value in made.items()]
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
