"""Collate the user's samples into a batch by torch's rules, with clear errors."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from speedtronic.data.types import Batch
from speedtronic.errors import DataError


def collate(samples: Sequence[Any]) -> Batch:
    """Collate `samples` as `torch.utils.data.default_collate` does.

    Except that a list of numbers under a key is refused: it is meant as a sequence, and torch would
    make one tensor of each place in it.

    Raises:
        DataError: shapes or keys differ between samples, or they hold what has no tensor.
    """
    if isinstance(samples[0], Mapping):
        _refuse_lists(samples[0])
    try:
        return default_collate(list(samples))
    except (TypeError, RuntimeError, KeyError, ValueError) as error:
        if (difference := _difference(samples)) is not None:
            raise DataError(f"data: the samples of one batch differ: {difference}") from error
        reason = str(error).split("\n")[0]
        raise DataError(f"data: samples cannot be put together into a batch: {reason}") from error


def first_tensor(batch: Batch) -> torch.Tensor | None:
    """Find the first tensor in a batch that has a dimension; the first one counts the samples."""
    for _, value in _leaves(batch, ""):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return value
    return None


def _refuse_lists(sample: Mapping[Any, Any]) -> None:
    for name, value in sample.items():
        if isinstance(value, list) and value and isinstance(value[0], int | float):
            raise DataError(
                f"data: {name!r} of a sample is a list of numbers; make it a tensor or an array "
                "(Hugging Face datasets: with_format('torch'))"
            )


def _difference(samples: Sequence[Any]) -> str | None:
    """Describe the first difference in keys or shapes between neighbours; None without one."""
    shapes = [{path: _shape(value) for path, value in _leaves(sample, "")} for sample in samples]
    for one, other in pairwise(shapes):
        for path in (*one, *other):
            where = f"{path} is" if path else "they are"
            if path not in one or path not in other:
                return f"{path or 'the sample'} is in some and not in others"
            if one[path] != other[path]:
                return (
                    f"{where} of shape {one[path]} in one and {other[path]} in another; "
                    "pad them to one shape in the dataset"
                )
    return None


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, torch.Tensor | np.ndarray) else ()
