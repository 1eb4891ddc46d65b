"""Values among a model's attributes: whether one changed, and its form in a checkpoint."""

import random
from collections import OrderedDict, deque
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from speedtronic.checkpoint.digest import encode_leaf
from speedtronic.data.stream_state import TAG, from_portable, to_portable
from speedtronic.errors import DataError, UnsavableError

MAX_LEAVES = 10_000  # of one attribute; what is larger is compared by identity only
MAX_DEPTH = 6
MAX_TENSOR_BYTES = 64 * 2**20
SCALARS = (type(None), bool, int, float, complex, str, bytes)
CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, torch.dtype, torch.device)
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
# Part of the random state already. NumPy's and Python's are instances that their modules keep.
GLOBAL = (torch.default_generator, random._inst, np.random.mtrand._rand)
BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox)
}
DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
CONTAINERS = {"deque": deque, "set": set, "frozenset": frozenset, "size": torch.Size}
MAY_BE = "numbers, strings, bytes, lists, tuples, dicts, sets, tensors, NumPy arrays"


@dataclass(frozen=True)
class Own:
    """What a model holds as torch knows it: the memories of its tensors, the ids of its modules."""

    memories: set[int]
    modules: set[int]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        tensors = (*model.parameters(), *model.buffers())
        return cls({memory(x) for x in tensors} - {0}, {id(x) for x in model.modules()})


class TransientError(UnsavableError):
    """A tensor in a graph of gradients, with which no later step can go on."""


class Look:
    """One look at values, in a form that equals that of a later look if nothing changed.

    Generators are collected on the way instead of compared, for their state is kept apart. Tensors
    that hang in a graph of gradients count as unchanged: no later step can go on with them.

    Args:
        keep: copy tensors, for a look that later ones are compared with.
        own: the model's own tensors and modules, which are kept elsewhere.

    Attributes:
        generators: those met, by path.
    """

    def __init__(self, *, keep: bool = False, own: "Own | None" = None) -> None:
        self.generators: dict[str, Any] = {}
        self._keep = keep
        self._own = own or Own(set(), set())
        self._met: set[int] = set()
        self._left = 0

    def at(self, path: str, value: Any) -> Any:
        """What `value`, found at `path`, is now."""
        self._left, generators = MAX_LEAVES, dict(self.generators)
        try:
            return self._seen(path, value, 0)
        except (OverflowError, RuntimeError):  # too large, or changed by another thread meanwhile
            self.generators = generators
            return _Same(value)

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
            return _Same(value)
        if isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            small = array.nbytes <= MAX_TENSOR_BYTES and not array.dtype.hasobject
            return (kind, array.dtype, array.shape, array.tobytes()) if small else _Same(value)
        if isinstance(value, dict):
            items = list(value.items())
            return kind, [(key, self._seen(f"{path}/{key}", x, depth + 1)) for key, x in items]
        if isinstance(value, set | frozenset):
            return kind, {x if type(x) in SCALARS else _Same(x) for x in value}
        if isinstance(value, list | tuple | deque):
            return kind, [self._seen(f"{path}/{n}", x, depth + 1) for n, x in enumerate(value)]
        if isinstance(value, nn.Module) and id(value) not in self._own.modules:
            held = (*value.parameters(), *value.buffers())  # a module that is hidden from torch
            return _Same(value), [(_Same(x), x._version) for x in held]
        if isinstance(value, nn.Module) or not hasattr(value, "__dict__") or id(value) in self._met:
            return _Same(value)
        self._met.add(id(value))  # often shared by many modules, as a configuration is
        fields = list(vars(value).items())
        return _Same(value), [(k, self._seen(f"{path}.{k}", x, depth + 1)) for k, x in fields]

    def _tensor(self, value: Tensor) -> Any:
        if value.grad_fn is not None or memory(value) in self._own.memories:
            return "tensor"
        if not comparable(value):
            return _Same(value)
        value = value.detach()
        return _Bits(value.clone() if self._keep else value)


class _Same:
    """Equal to a wrapper of the same object only."""

    def __init__(self, value: Any) -> None:
        self.value = value  # held, so that its id stays its own

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Bits:
    """Equal to a wrapper of a tensor of the same kind and bytes."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and same_bits(self.value, other.value)


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
    """The size of a tensor's numbers; of a sparse one, of those that it has."""
    if value.layout == torch.sparse_coo:
        return value._values().nbytes
    return value.nbytes if value.layout == torch.strided else value.values().nbytes


def comparable(value: Tensor) -> bool:
    """Whether a checkpoint can hold a tensor, and it is small enough to compare at each save."""
    if type(value) not in (Tensor, nn.Parameter) or value.is_nested or value.is_meta:
        return False
    return num_bytes(value) <= MAX_TENSOR_BYTES


def memory(value: Tensor) -> int:
    """Where the storage of a tensor lies; 0 where it has none."""
    try:
        return value.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse
        return 0


def generator_state(generator: Any) -> Any:
    """The state of a generator as tensors and numbers."""
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


def to_saved(value: Any, path: str) -> Any:
    """`value` as what a checkpoint can hold; plain values are themselves, containers are copied.

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
        return kind(to_saved(x, f"{path}[{n}]") for n, x in enumerate(value))
    if kind is dict or kind is OrderedDict:
        plain = TAG not in value and all(type(key) in (str, int, float, bool) for key in value)
        pairs = [(key, to_saved(x, f"{path}[{key!r}]")) for key, x in value.items()]
        if plain:
            return kind(pairs)
        return {TAG: kind.__name__, "pairs": [(to_saved(key, path), x) for key, x in pairs]}
    if kind in (set, frozenset):
        return {TAG: kind.__name__, "items": [to_saved(x, path) for x in sorted(value, key=repr)]}
    if kind in (deque, torch.Size):
        name = "deque" if kind is deque else "size"
        maxlen = value.maxlen if kind is deque else None
        return {TAG: name, "items": [to_saved(x, path) for x in value], "maxlen": maxlen}
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


def from_saved(value: Any) -> Any:
    """What `to_saved` was given; tensors lie where they lay."""
    if isinstance(value, list | tuple):
        return type(value)(from_saved(x) for x in value)
    if not isinstance(value, dict):
        return value
    tag = value.get(TAG)
    if tag is None:
        return type(value)((key, from_saved(x)) for key, x in value.items())
    if tag == "tensor":
        return value["value"].to(value["device"])
    if "pairs" in value:
        made = OrderedDict if tag == "OrderedDict" else dict
        return made((from_saved(key), from_saved(x)) for key, x in value["pairs"])
    if tag in CONTAINERS and "items" in value:
        items = [from_saved(x) for x in value["items"]]
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
