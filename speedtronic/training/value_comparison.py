"""Compare values among a model's attributes at two times."""

import random
from collections import deque
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from speedtronic.checkpoint.digest import encode_leaf

MAX_LEAVES = 10_000  # of one attribute; what is larger is compared by identity only
MAX_DEPTH = 6
MAX_TENSOR_BYTES = 64 * 2**20
SCALARS = (type(None), bool, int, float, complex, str, bytes)
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, torch.dtype, torch.device)
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Part of the random state already. NumPy's and Python's are instances that their modules keep.
GLOBAL = (torch.default_generator, random._inst, np.random.mtrand._rand)


@dataclass(frozen=True)
class ModelParts:
    """Identifies a model's own tensors and modules: addresses of storages, ids of modules."""

    storages: set[int]
    modules: set[int]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        tensors = (*model.parameters(), *model.buffers())
        return cls({storage_address(x) for x in tensors} - {0}, {id(x) for x in model.modules()})


class ValueComparison:
    """Takes snapshots of values; two snapshots of a value are equal if it did not change between.

    Generators are collected on the way instead of compared, for their state is kept apart. Tensors
    that hang in a graph of gradients count as unchanged: no later step can go on with them.

    Args:
        keep: copy tensors, for snapshots that later ones are compared with.
        own: the model's own tensors and modules, which are kept elsewhere.

    Attributes:
        generators: those met, by path.
    """

    def __init__(self, *, keep: bool = False, own: "ModelParts | None" = None) -> None:
        self.generators: dict[str, Any] = {}
        self._keep = keep
        self._own = own or ModelParts(set(), set())
        self._met: set[int] = set()
        self._left = 0

    def snapshot(self, path: str, value: Any) -> Any:
        """Return a snapshot of `value`, found at `path`."""
        self._left, generators = MAX_LEAVES, dict(self.generators)
        try:
            return self._seen(path, value, 0)
        except (OverflowError, RuntimeError):  # too large, or changed by another thread meanwhile
            self.generators = generators
            return _Identity(value)

    def _seen(self, path: str, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in SCALARS:
            return kind, value if value == value else "nan"
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise OverflowError
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, GENERATORS):
            if not any(value is known for known in (*GLOBAL, *self.generators.values())):
                self.generators[path] = value
            return "generator"
        if isinstance(value, CODE):
            return _Identity(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            small = array.nbytes <= MAX_TENSOR_BYTES and not array.dtype.hasobject
            return (kind, array.dtype, array.shape, array.tobytes()) if small else _Identity(value)
        if isinstance(value, dict):
            items = list(value.items())
            return kind, [(key, self._seen(f"{path}/{key}", x, depth + 1)) for key, x in items]
        if isinstance(value, set | frozenset):
            return kind, {x if type(x) in SCALARS else _Identity(x) for x in value}
        if isinstance(value, list | tuple | deque):
            return kind, [self._seen(f"{path}/{n}", x, depth + 1) for n, x in enumerate(value)]
        if isinstance(value, nn.Module) and id(value) not in self._own.modules:
            held = (*value.parameters(), *value.buffers())  # a module that is hidden from torch
            return _Identity(value), [(_Identity(x), x._version) for x in held]
        if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or id(value) in self._met:
            return _Identity(value)
        self._met.add(id(value))  # often shared by many modules, as a configuration is
        fields = list(vars(value).items())
        return _Identity(value), [(k, self._seen(f"{path}.{k}", x, depth + 1)) for k, x in fields]

    def _tensor(self, value: Tensor) -> Any:
        if value.grad_fn is not None or storage_address(value) in self._own.storages:
            return "tensor"
        if not comparable(value):
            return _Identity(value)
        value = value.detach()
        return _TensorBytes(value.clone() if self._keep else value)


class _Identity:
    """Compares equal to a wrapper of the same object only."""

    def __init__(self, value: Any) -> None:
        self.value = value  # a reference, so that its id is not used again

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _TensorBytes:
    """Compares equal to a wrapper of a tensor of the same kind and bytes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TensorBytes) and same_bits(self.value, other.value)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are of one type and shape and hold the same bytes."""
    if (a.dtype, a.shape, a.layout, a.device) != (b.dtype, b.shape, b.layout, b.device):
        return False
    if a.layout == torch.strided and not a.is_quantized:  # where they lie, without a copy
        x, y = (t.resolve_conj().resolve_neg().contiguous().reshape(-1) for t in (a, b))
        x, y = (t.view(torch.uint8) for t in (x, y))
        if x.device.type == "cpu":  # NumPy compares eight bytes at a time, in this thread alone
            words, rest = x.numel() // 8 * 8, x.numel() % 8
            a_, b_ = x.numpy(), y.numpy()
            same = np.array_equal(a_[:words].view(np.int64), b_[:words].view(np.int64))
            return same and (not rest or np.array_equal(a_[words:], b_[words:]))
        return torch.equal(x, y)
    (kind, x), (other, y) = encode_leaf("", a), encode_leaf("", b)
    return kind == other and bool((x == y).all())


def num_bytes(value: Tensor) -> int:
    """Return the bytes of a tensor's numbers; of a sparse one, of those that are stored."""
    if value.layout == torch.sparse_coo:
        return value._values().nbytes
    return value.nbytes if value.layout == torch.strided else value.values().nbytes


def comparable(value: Tensor) -> bool:
    """Whether a checkpoint can hold a tensor, and it is small enough to compare at each save."""
    if type(value) not in (Tensor, nn.Parameter) or value.is_nested or value.is_meta:
        return False
    return num_bytes(value) <= MAX_TENSOR_BYTES


def storage_address(value: Tensor) -> int:
    """Return the address of a tensor's storage; 0 where it has none."""
    try:
        return value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse
        return 0
