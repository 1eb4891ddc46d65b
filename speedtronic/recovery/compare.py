"""Load two training states, compare them, and say where they first differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from speedtronic.checkpoint import codec
from speedtronic.checkpoint.digest import determining_state, encode_leaf
from speedtronic.checkpoint.loading import load_newest
from speedtronic.run_directory import find_store


@dataclass(frozen=True)
class Difference:
    """Where and how two states differ.

    Attributes:
        path: of the first tensor that differs, in the order of the paths, such as
            `model/blocks.0.attention.query.weight`; where none does, of the first other value.
        found, expected: the values there, in a few words.
        max_abs: the largest absolute difference of two tensors of one type and shape; else None.
        num_differing, num_values: over the whole states.
    """

    path: str
    found: str
    expected: str
    max_abs: float | None
    num_differing: int
    num_values: int

    def __str__(self) -> str:
        count = f"{self.num_differing} of {self.num_values} values differ"
        if self.max_abs is not None:
            return f"{count}, first {self.path}: max abs difference {self.max_abs:.3g}"
        return f"{count}, first {self.path}: found {self.found}, expected {self.expected}"


def load_state(source: str) -> tuple[str, dict[str, Any]]:
    """Load the state in a payload's file, or in the newest good checkpoint of a run.

    Args:
        source: path of the file, or of the run's directory.

    Returns:
        A description for people, and the state.

    Raises:
        UsageError: there is no such file or directory.
        CheckpointError: it holds no good checkpoint.
    """
    path = Path(source)
    if path.is_file():
        state = codec.decode_payload(path.read_bytes())
    else:
        state = load_newest(find_store(source)).state
    return f"{source} at step {state.get('step')}", state


def difference(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Difference | None:
    """Compare two states value by value, in what `state_digest` covers; None if they are equal."""
    ours, theirs = (
        dict(_leaves(determining_state(found), "")),
        dict(_leaves(determining_state(expected), "")),
    )
    paths = sorted({*ours, *theirs})
    differing = [path for path in paths if not _same(ours.get(path, ...), theirs.get(path, ...))]
    if not differing:
        return None
    tensors = (p for p in differing if isinstance(ours.get(p, theirs.get(p)), torch.Tensor))
    path = next(tensors, differing[0])
    a, b = ours.get(path, ...), theirs.get(path, ...)
    return Difference(path, _show(a), _show(b), _max_abs(a, b), len(differing), len(paths))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = ((f"{index:04d}", item) for index, item in enumerate(value))
    else:
        yield path, value
    for key, item in items:
        yield from _leaves(item, f"{path}/{key}" if path else str(key))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        # By their bytes: NaN is NaN here, and 0 is not -0.
        (kind, x), (other, y) = encode_leaf("", a), encode_leaf("", b)
        return kind == other and bool((x == y).all())
    return type(a) is type(b) and (a == b or (a != a and b != b))


def _max_abs(a: Any, b: Any) -> float | None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return None
    plain = a.layout == b.layout == torch.strided and not a.is_quantized and not a.is_complex()
    if not plain or (a.dtype, a.shape) != (b.dtype, b.shape):
        return None
    try:
        return float((a.double() - b.double()).abs().max())  # not empty, for they differ
    except NotImplementedError:  # a type that torch cannot compute with
        return None


def _show(value: Any) -> str:
    if value is ...:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)
