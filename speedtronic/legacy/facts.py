"""Checks type and range of every value in a state of Speedtronic 2.0, before it is used.

2.0 wrote no digests, so its files may say anything. After `check_run` the rest of the package can
take types and ranges for granted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.untrusted_types import WordArray
from speedtronic.errors import CorruptError

REQUIRED = ("model", "optimizer", "scheduler", "step", "samples", "tokens", "rng")
OPTIONAL = ("scaler", "config", "precision")

MERSENNE_WORDS = 624
WORD = 2**32
MAX_SHOWN = 40  # characters of a value

Is = Callable[[Any], bool]


def check_run(state: Mapping[str, Any]) -> None:
    """Check that all a run needs is there, and that all there is has its type and range.

    Raises:
        CorruptError: names the first key that is not right, with what was found and expected.
    """
    if missing := [key for key in REQUIRED if state.get(key) is None]:
        raise CorruptError(f"payload is not a checkpoint, it lacks {', '.join(missing)}")
    for key in REQUIRED + OPTIONAL:
        _check(state, key)


def check_weights(state: Mapping[str, Any]) -> None:
    """Check that there are weights; what else is there does not matter.

    Raises:
        CorruptError: as `check_run`.
    """
    if state.get("model") is None:
        raise CorruptError("payload is not a checkpoint, it lacks model")
    _check(state, "model")


def _check(state: Mapping[str, Any], key: str) -> None:
    is_right, expected = _FACTS[key]
    value = state.get(key)
    if value is not None and not is_right(value):
        raise CorruptError(f"payload is damaged: {key} is {_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    if isinstance(value, str | bool | float | type(None)) or type(value) is int:
        return repr(value)[:MAX_SHOWN]
    return f"a {type(value).__name__} of other content"


def _count(value: Any, end: int = 2**63) -> bool:
    return type(value) is int and 0 <= value < end


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _mapping(value: Any, is_right: Is) -> bool:
    return isinstance(value, dict) and all(
        type(key) is str and is_right(item) for key, item in value.items()
    )


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(type(key) in (str, int) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or type(value) in (str, int, float, bool)


def _model(value: Any) -> bool:
    return _mapping(value, lambda item: isinstance(item, torch.Tensor) or _plain(item))


def _optimizer(value: Any) -> bool:
    match value:
        case {"state": dict() as state, "param_groups": [*groups]}:
            return all(map(_group, groups)) and all(
                _count(index) and _mapping(item, _moment) for index, item in state.items()
            )
    return False


def _moment(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or value is None or _number(value)


def _group(value: Any) -> bool:
    return (
        _mapping(value, _plain)
        and isinstance(value.get("params"), list)
        and all(map(_count, value["params"]))
    )


def _scheduler(value: Any) -> bool:
    match value:
        case {"last_epoch": last, "base_lrs": [_, *_] as rates}:
            return _mapping(value, _plain) and _count(last) and all(map(_number, rates))
    return False


def _rng(value: Any) -> bool:
    match value:
        case {"python": python, "torch": words}:
            device = value.get("cuda") or []
            return (
                _python_state(python)
                and _bytes_of_state(words)
                and words.numel() == torch.get_rng_state().numel()
                and (value.get("numpy") is None or _numpy_state(value["numpy"]))
                and isinstance(device, list | tuple)
                and all(map(_bytes_of_state, device))
            )
    return False


def _python_state(value: Any) -> bool:
    match value:
        case (3, (*words, position), gauss) if type(value[0]) is int:
            return (
                len(words) == MERSENNE_WORDS
                and all(_count(word, WORD) for word in words)
                and _count(position, MERSENNE_WORDS + 1)
                and (gauss is None or type(gauss) is float)
            )
    return False


def _numpy_state(value: Any) -> bool:
    match value:
        case ("MT19937", WordArray() as array, position, has_gauss, float()):
            return (
                array.words.numel() == MERSENNE_WORDS
                and _count(position, MERSENNE_WORDS + 1)
                and _count(has_gauss, 2)
            )
    return False


def _bytes_of_state(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.uint8 and value.dim() == 1


def _config(value: Any) -> bool:
    """Check the sections that are read directly; `translate` checks the rest."""
    return (
        _mapping(value, _plain)
        and all(isinstance(value.get(key), dict) for key in ("data", "scheduler"))
        and _count(value["scheduler"].get("max_steps"))
    )


_FACTS: dict[str, tuple[Is, str]] = {
    "model": (_model, "tensors by name"),
    "optimizer": (_optimizer, "what an optimizer of torch holds"),
    "scheduler": (_scheduler, "what a schedule of torch holds"),
    "scaler": (lambda value: _mapping(value, _number), "what a gradient scaler holds"),
    "step": (lambda value: _count(value, layout.MAX_STEP + 1), "a number of steps"),
    "samples": (_count, "a number of samples"),
    "tokens": (_count, "a number of tokens"),
    "config": (_config, "a configuration of 2.0"),
    "precision": (lambda value: _mapping(value, _plain), "what 2.0 said of its precision"),
    "rng": (_rng, "states of the generators of Python, NumPy and torch"),
}
