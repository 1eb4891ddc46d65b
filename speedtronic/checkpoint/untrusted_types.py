"""Builds, by value, the types that a training state of unknown origin may contain.

Each function here replaces one that a file names, and is called with arguments from the file. It
trusts none of them: a wrong type, or a size that exceeds the bytes, raises `CorruptError`.
"""

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from speedtronic.errors import CorruptError

MAX_DIMS = 64
MAX_EXPANDED = 2**16  # values of an expanded tensor, which has less memory than values

# The names of storage classes in a payload, and the type of their values.
DTYPES: dict[Any, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}
_OTHER_DTYPES = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")


class Storage:
    """Holds a copy of the bytes of a tensor in the file, and the type of its values.

    Raises:
        CorruptError: the file has fewer bytes than `num_values` need.
    """

    def __init__(self, content: memoryview, kind: str, num_values: object) -> None:
        needed_bytes = _count(num_values) * DTYPES[kind].itemsize
        if needed_bytes != len(content):
            raise CorruptError(
                f"payload does not load: a tensor has {len(content)} bytes, expected {needed_bytes}"
            )
        self.dtype = DTYPES[kind]
        self.memory = bytearray(content)  # shared by the tensors that are made of it


class WordArray:
    """Replaces the one NumPy array that 2.0 saved: the words of NumPy's random state.

    Attributes:
        words: as an int64 tensor.
    """

    def __init__(self) -> None:
        self.words = torch.zeros(0, dtype=torch.int64)

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, (int() as length,), WordType(), False, bytes() as content) if (
                0 <= length == len(content) / 4
            ):
                words = torch.frombuffer(bytearray(content), dtype=torch.uint32) if length else None
                self.words = self.words if words is None else words.to(torch.int64)
            case _:
                raise CorruptError("payload holds an array of NumPy that is no random state")


class WordType:
    """Replaces NumPy's type of unsigned 32-bit numbers."""

    def __setstate__(self, state: object) -> None:
        if state != (3, "<", None, None, None, -1, -1, 0):
            raise CorruptError("payload holds an array of NumPy of another byte order")


def _array(kind: object, shape: object, code: object) -> WordArray:
    """Replace NumPy's `_reconstruct`."""
    if kind is not _Ndarray or shape != (0,) or code not in (b"b", "b"):
        raise CorruptError("payload holds an array of NumPy that is no random state")
    return WordArray()


class _Ndarray:
    """Replaces `numpy.ndarray`, which a good file names and never calls."""

    def __init__(self, *_: object) -> None:
        raise CorruptError("payload needs numpy.ndarray to load, which a training state does not")


def _word_type(code: object, align: object, copy: object) -> WordType:
    """Replace `numpy.dtype`."""
    if code != "u4":
        raise CorruptError(f"payload holds an array of NumPy of type {code!r}, expected 'u4'")
    return WordType()


def _encode(text: object, encoding: object) -> bytes:
    """Replace `_codecs.encode`, by which pickle protocol 2 writes bytes."""
    if type(text) is not str or encoding != "latin1":
        raise CorruptError("payload needs _codecs.encode to load, other than for bytes")
    return text.encode("latin1")


def _ordered(*items: object) -> "OrderedDict[Any, Any]":
    if items:
        raise CorruptError("payload holds an OrderedDict that is not built from nothing")
    return _Ordered()


class _Ordered(OrderedDict[Any, Any]):
    """An OrderedDict that accepts one attribute: the dict of module versions."""

    def __setstate__(self, state: object) -> None:
        metadata = state.get("_metadata") if isinstance(state, dict) else None
        if isinstance(metadata, dict):
            self._metadata = metadata


def _tensor(
    storage: object,
    offset: object,
    shape: object,
    stride: object,
    requires_grad: object,
    hooks: object,
    *more: object,
) -> Tensor:
    """Replace torch's `_rebuild_tensor_v2`, and `_v3`, whose last argument is the type."""
    if not isinstance(storage, Storage) or hooks or len(more) > 1:
        raise CorruptError("payload does not load: a tensor is not made of a storage")
    if type(shape) is not tuple or type(stride) is not tuple or len(shape) != len(stride):
        raise CorruptError("payload does not load: a tensor has no shape")
    if len(shape) > MAX_DIMS:
        raise CorruptError(f"payload does not load: a tensor has {len(shape)} dimensions")
    shape, stride = tuple(map(_count, shape)), tuple(map(_count, stride))
    dtype = more[0] if more else storage.dtype
    if not isinstance(dtype, torch.dtype):
        raise CorruptError("payload does not load: a tensor has an unknown type")
    there = len(storage.memory) // dtype.itemsize
    size = math.prod(shape)
    last = _count(offset) + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if size and (last >= there or size > max(there, MAX_EXPANDED)):
        raise CorruptError(f"payload does not load: a tensor of shape {list(shape)} has no room")
    if not size:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(storage.memory, dtype=dtype).as_strided(shape, stride, _count(offset))


def _parameter(data: object, requires_grad: object, hooks: object) -> Tensor:
    """Replace torch's `_rebuild_parameter`."""
    if not isinstance(data, Tensor) or hooks:
        raise CorruptError("payload does not load: a parameter is not made of a tensor")
    return data


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise CorruptError(f"payload does not load: {value!r} is no number of values")
    return value


ALLOWED_GLOBALS: dict[str, Any] = {
    "collections OrderedDict": _ordered,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
    "numpy.core.multiarray _reconstruct": _array,
    "numpy._core.multiarray _reconstruct": _array,
    "numpy ndarray": _Ndarray,
    "numpy dtype": _word_type,
    "_codecs encode": _encode,
    "torch.storage UntypedStorage": "UntypedStorage",
    **{f"torch {name}": name for name in DTYPES},
    **{f"torch {name}": getattr(torch, name) for name in _OTHER_DTYPES},
}
"""Maps each name that a file may use, as pickle writes it ("module name"), to its replacement."""
