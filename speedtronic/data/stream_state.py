"""Convert a user's opaque state to what `torch.load(weights_only=True)` accepts, and back."""

from typing import Any

import numpy as np
import torch

from speedtronic.errors import DataError

TAG = "__speedtronic__"
PLAIN = (type(None), bool, int, float, str)


def to_portable(value: Any, path: str = "state_dict()") -> Any:
    """Convert `value` to numbers, strings, tensors, lists, tuples and dicts, all copied.

    Bytes and what is NumPy's become dicts with `TAG` in them, and so does a dict with `TAG` or keys
    that are not plain.

    Raises:
        DataError: something in it has no such form; the message names its type and place.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if kind in PLAIN:
        return value
    if kind is list or kind is tuple:
        return kind(to_portable(item, f"{path}[{n}]") for n, item in enumerate(value))
    if kind is dict:
        items = [(key, to_portable(item, f"{path}[{key!r}]")) for key, item in value.items()]
        if TAG not in value and all(type(key) in PLAIN for key in value):
            return dict(items)
        return {TAG: "dict", "items": [(to_portable(key, path), item) for key, item in items]}
    if kind is bytes or kind is bytearray:
        return {TAG: kind.__name__, "bytes": _tensor(bytes(value))}
    if isinstance(value, np.generic) or kind is np.ndarray:
        array = np.asarray(value)
        if not array.dtype.hasobject and array.dtype.names is None:
            name = "array" if kind is np.ndarray else "scalar"
            return {
                TAG: name,
                "bytes": _tensor(array.tobytes()),
                "dtype": array.dtype.str,
                "shape": array.shape,
            }
    raise DataError(
        f"data.dataset: {path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint "
        "cannot hold; use numbers, strings, bytes, lists, tuples, dicts, tensors and NumPy arrays"
    )


def from_portable(value: Any) -> Any:
    """Convert back to what `to_portable` was given, equal in every type and bit."""
    if isinstance(value, list | tuple):
        return type(value)(from_portable(item) for item in value)
    if not isinstance(value, dict):
        return value
    tag = value.get(TAG)
    if tag is None:
        return {key: from_portable(item) for key, item in value.items()}
    if tag == "dict":
        return {from_portable(key): from_portable(item) for key, item in value["items"]}
    content = value["bytes"].numpy().tobytes()
    if tag == "bytes":
        return content
    if tag == "bytearray":
        return bytearray(content)
    array = np.frombuffer(content, dtype=value["dtype"]).reshape(value["shape"]).copy()
    return array if tag == "array" else array[()]


def _tensor(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8))
