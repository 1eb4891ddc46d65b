"""Find random generators that the user's data keep, and parts that have `set_epoch`."""

import functools
import random
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
GLOBAL_STREAMS = (torch.default_generator, random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
PLAIN = (str, bytes, int, float, type(None), type, ModuleType, torch.Tensor, np.ndarray, np.generic)

MAX_DEPTH = 6
MAX_ITEMS = 100
"""Items looked at in a container: a list of transforms has a few, one of samples millions."""

MAX_VISITS = 10_000

MERSENNE_WORDS = 624
"""Length of the state of Python's and NumPy's generators; torch's is longer."""

NESTED = ("dataset", "datasets", "sampler", "batch_sampler")
"""The attributes under which torch's and most other wrappers keep what they wrap."""


def generators_in(value: Any) -> list[str]:
    """List the paths of the generators among the attributes of `value`, such as `Crops.rng`."""
    return list(_generators(value, type(value).__name__, MAX_DEPTH, set()))


def holds_generator(state: Any) -> bool:
    """Whether a user's state contains what looks like the state of a generator, or may be one."""
    if isinstance(state, Mapping):
        return "bit_generator" in state or any(holds_generator(item) for item in state.values())
    if isinstance(state, list | tuple):
        return len(state) >= MERSENNE_WORDS or any(holds_generator(item) for item in state)
    if isinstance(state, torch.Tensor | np.ndarray):
        return state.ndim == 1 and len(state) >= MERSENNE_WORDS
    return isinstance(state, bytes)


def _generators(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[str]:
    if isinstance(value, GENERATORS):
        if not any(value is stream for stream in GLOBAL_STREAMS):
            yield path
        return
    if depth == 0 or id(value) in seen or isinstance(value, PLAIN) or len(seen) > MAX_VISITS:
        return
    seen.add(id(value))
    for name, item in _inside(value):
        yield from _generators(item, f"{path}{name}", depth - 1, seen)


def _inside(value: Any) -> list[tuple[str, Any]]:
    if type(value).__module__.partition(".")[0] == "datasets":
        return []  # Hugging Face's copy theirs before they draw, and are known to repeat
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", value[key]) for key in list(value)[:MAX_ITEMS]]
    if isinstance(value, list | tuple):
        return [(f"[{number}]", item) for number, item in enumerate(value[:MAX_ITEMS])]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(f".{name}", cell.cell_contents) for name, cell in cells if _is_set(cell)]
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    bound = [(".__self__", getattr(value, "__self__", None))] if callable(value) else []
    kept = getattr(value, "__dict__", None)
    attributes = dict(kept) if isinstance(kept, dict) else {}
    for name in getattr(type(value), "__slots__", ()):
        attributes[name] = getattr(value, name, None)
    return [(f".{name}", item) for name, item in attributes.items()] + bound


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def listeners_in(value: Any) -> list[Any]:
    """Return those of `value` and the parts it wraps that have `set_epoch`, each once."""
    found: list[Any] = []
    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop(0)
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        if callable(getattr(part, "set_epoch", None)):
            found.append(part)
        for name in NESTED:
            inner = getattr(part, name, None)
            waiting += list(inner)[:MAX_ITEMS] if isinstance(inner, list | tuple) else [inner]
    return found


def tell_epoch(value: Any, epoch: int) -> None:
    """Call `set_epoch` of `value` and of all that it wraps."""
    for part in listeners_in(value):
        part.set_epoch(epoch)
