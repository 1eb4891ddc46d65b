"""Encode values among a model's attributes as what a checkpoint can hold, and decode them."""

import random
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from speedtronic.data.stream_state import TAG, from_portable, to_portable
from speedtronic.errors import DataError, UnsavableError
from speedtronic.training.value_comparison import GENERATORS

BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox)
}
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
CONTAINERS = {"deque": deque, "set": set, "frozenset": frozenset, "size": torch.Size}
MAY_BE = "numbers, strings, bytes, lists, tuples, dicts, sets, tensors, NumPy arrays"


class TransientError(UnsavableError):
    """A tensor in a graph of gradients, with which no later step can go on."""


def generator_state(generator: Any) -> Any:
    """Return the state of a generator as tensors and numbers."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": torch.tensor(words), "gauss": gauss}
    if isinstance(generator, np.random.RandomState):
        return to_portable(generator.get_state(legacy=False))
    return to_portable(generator.bit_generator.state)


def set_generator_state(generator: Any, state: Any) -> None:
    """Put a generator into the state that `generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(from_portable(state))
    else:
        generator.bit_generator.state = from_portable(state)


def encode_value(value: Any, path: str) -> Any:
    """Encode `value` as what a checkpoint can hold; plain values stay, containers are copied.

    Raises:
        UnsavableError: something in it has no such form; names its type and `path`.
    """
    kind = type(value)
    if kind in (type(None), bool, int, float, str):
        return value
    if kind in (Tensor, nn.Parameter):
        if value.grad_fn is not None:
            raise TransientError(path)
        if value.is_nested or value.is_meta:
            raise UnsavableError(f"{path} is a tensor without values of its own, expected {MAY_BE}")
        value = value.detach()
        if value.device.type == "cpu":
            return value
        return {TAG: "tensor", "value": value, "device": value.device.type}
    if kind is list or kind is tuple:
        return kind(encode_value(x, f"{path}[{n}]") for n, x in enumerate(value))
    if kind is dict or kind is OrderedDict:
        plain = TAG not in value and all(type(key) in (str, int, float, bool) for key in value)
        pairs = [(key, encode_value(x, f"{path}[{key!r}]")) for key, x in value.items()]
        if plain:
            return kind(pairs)
        return {TAG: kind.__name__, "pairs": [(encode_value(key, path), x) for key, x in pairs]}
    if kind in (set, frozenset):
        return {
            TAG: kind.__name__,
            "items": [encode_value(x, path) for x in sorted(value, key=repr)],
        }
    if kind in (deque, torch.Size):
        name = "deque" if kind is deque else "size"
        maxlen = value.maxlen if kind is deque else None
        return {TAG: name, "items": [encode_value(x, path) for x in value], "maxlen": maxlen}
    if kind is complex:
        return {TAG: "complex", "parts": [value.real, value.imag]}
    if kind in (torch.dtype, torch.device):
        return {TAG: kind.__name__, "name": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Generator) or kind in GENERATORS:
        device = str(value.device) if isinstance(value, torch.Generator) else ""
        state = generator_state(value)
        return {TAG: "generator", "of": kind.__name__, "device": device, "state": state}
    try:
        return to_portable(value)
    except DataError:
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise UnsavableError(f"{path} is a {name}, expected {MAY_BE}") from None


def decode_value(value: Any) -> Any:
    """Return the value that `encode_value` was given, tensors on the device where they were."""
    if isinstance(value, list | tuple):
        return type(value)(decode_value(x) for x in value)
    if not isinstance(value, dict):
        return value
    tag = value.get(TAG)
    if tag is None:
        return type(value)((key, decode_value(x)) for key, x in value.items())
    if tag == "tensor":
        return value["value"].to(value["device"])
    if "pairs" in value:
        made = OrderedDict if tag == "OrderedDict" else dict
        return made((decode_value(key), decode_value(x)) for key, x in value["pairs"])
    if tag in CONTAINERS and "items" in value:
        items = [decode_value(x) for x in value["items"]]
        return deque(items, value["maxlen"]) if tag == "deque" else CONTAINERS[tag](items)
    if tag == "complex":
        return complex(*value["parts"])
    if tag in ("dtype", "device"):
        return torch.device(value["name"]) if tag == "device" else DTYPES[value["name"]]
    return _generator(value) if tag == "generator" else from_portable(value)


def _generator(saved: dict[str, Any]) -> Any:
    generator: Any
    if saved["of"] == "Generator" and not saved["device"]:
        bits = BIT_GENERATORS[saved["state"]["bit_generator"]]
        generator = np.random.Generator(bits())
    elif saved["of"] == "Generator":
        generator = torch.Generator(saved["device"])
    else:
        generator = random.Random() if saved["of"] == "Random" else np.random.RandomState()
    set_generator_state(generator, saved["state"])
    return generator
