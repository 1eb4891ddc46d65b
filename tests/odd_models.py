"""Models that keep state in every place that there is, named in test configurations."""

import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

VOCAB = 50


class Small(nn.Module):
    """Predicts the next token; `look` may change the hidden numbers."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 8)
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCAB)
        self.make()

    def make(self) -> None:
        """What a subclass adds."""

    def look(self, x: Tensor) -> Tensor:
        return x

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.embedding(input_ids)
        return {"logits": self.head(self.look(x + torch.tanh(self.hidden(x))))}


# --- state outside the state_dict ---


class Counter(Small):
    def make(self) -> None:
        self.calls, self.drop = 0, nn.Dropout(0.0)

    def look(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.drop.p = min(0.5, 0.05 * self.calls)
        return self.drop(x)


class NonPersistent(Small):
    def make(self) -> None:
        self.register_buffer("mean", torch.zeros(8), persistent=False)

    def look(self, x: Tensor) -> Tensor:
        self.mean.data.lerp_(x.detach().mean((0, 1)), 0.1)
        return x - self.mean


class NonPersistentLater(Small):
    def look(self, x: Tensor) -> Tensor:
        if not hasattr(self, "mean"):
            self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return x - self.mean


class TensorAttribute(Small):
    def make(self) -> None:
        self.means = [torch.zeros(8)]
        self.last = self.means[0]
        self.graph: Tensor | None = None

    def look(self, x: Tensor) -> Tensor:
        self.graph = x.sum()
        self.means[0].lerp_(x.detach().mean((0, 1)), 0.1)
        return x - self.last


class SharedList(nn.Module):
    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(self.seen) / 10)
        return x * (1 + sum(self.seen) / 100)


class Shared(Small):
    def make(self) -> None:
        seen: list[float] = []
        self.one, self.other = SharedList(seen), SharedList(seen)

    def look(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


class Containers(Small):
    """Of every kind; and what a first use makes, and deletes."""

    def make(self) -> None:
        self.recent: deque[float] = deque(maxlen=3)
        self.table = {"a": 1, 2: (3, 4.0)}
        self.words = {"x"}
        self.array = np.zeros(3)
        self.unused = 1
        self.weird: Any = None

    def look(self, x: Tensor) -> Tensor:
        self.recent.append(float(len(self.recent) + self.array.sum()))
        self.table["a"] += 1
        self.words.add(str(len(self.words)))
        self.array[0] += 1
        self.weird = (torch.float32, complex(1, len(self.words)), x.shape, b"1", np.float32(2))
        if hasattr(self, "unused"):
            del self.unused
        self.made_later = {"n": self.table["a"]}
        return x * (1 + self.array[0] / 10 + sum(self.recent) / 10 + len(self.words) / 10)


class Generators(Small):
    """One of each library, in an attribute, in a list, in an object, and made on first use."""

    def make(self) -> None:
        self.torch = torch.Generator().manual_seed(1)
        self.others = {"python": random.Random(2), "numpy": [np.random.default_rng(3)]}
        self.old = np.random.RandomState(4)
        self.noise = Noise()
        self.later: Any = None
        self.system = random.SystemRandom()
        self.whole = torch.default_generator

    def look(self, x: Tensor) -> Tensor:
        self.later = self.later or [np.random.default_rng(5), torch.Generator().manual_seed(6)]
        scale = self.others["python"].random() + self.others["numpy"][0].random()
        scale += self.old.normal() + self.noise.draw() + self.later[0].random()
        for generator in (self.torch, self.later[1], self.whole):
            x = x + 0.1 * torch.randn(x.shape, generator=generator)
        return x * scale


class Noise:
    def __init__(self) -> None:
        self.generator = random.Random(7)

    def draw(self) -> float:
        return self.generator.random()


class Freezes(Small):
    def make(self) -> None:
        self.calls = 0

    def look(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls in (5, 15):  # said once, so that only a resume can bring it back
            self.hidden.requires_grad_(self.calls == 15)
        return x


# --- odd buffers ---


class Expanded(Small):
    def make(self) -> None:
        self.register_buffer("scale", torch.tensor([0.5]).expand(8))

    def look(self, x: Tensor) -> Tensor:
        return x * self.scale


class Grows(Small):
    def make(self) -> None:
        self.register_buffer("queue", torch.zeros(0, 8))

    def look(self, x: Tensor) -> Tensor:
        self.queue = torch.cat([self.queue, x.detach().mean((0, 1))[None]])
        return x - self.queue.mean(0)


class Appears(Small):
    """A buffer that is None at first, one that becomes None, one registered on first use, one
    whose type changes."""

    def make(self) -> None:
        self.register_buffer("mean", None)
        self.register_buffer("once", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def look(self, x: Tensor) -> Tensor:
        self.mean = x.detach().mean() if self.mean is None else self.mean * 0.9
        self.once = None
        if not hasattr(self, "late"):
            self.register_buffer("late", torch.zeros(2))
        self.late += 1
        self.count = self.count + 0.5
        return x - self.mean + self.late.sum() + self.count


class ComesApart(Small):
    """Buffers that share memory with each other and with a weight, until the first use."""

    def make(self) -> None:
        self.register_buffer("a", torch.zeros(8))
        self.register_buffer("b", self.a)
        self.register_buffer("c", self.hidden.bias.detach())
        self.register_buffer("view", self.hidden.weight.detach()[0])

    def look(self, x: Tensor) -> Tensor:
        self.a = self.a + 1
        self.b.add_(0.5)
        self.c = self.c * 0.5 + 1
        return x + self.a - self.b + self.c + self.view


def odd_buffers() -> dict[str, Tensor]:
    eye = torch.eye(4)
    return {
        "float8_e4m3": torch.randn(4, 4).to(torch.float8_e4m3fn),
        "float8_e5m2": torch.randn(4).to(torch.float8_e5m2),
        "float4": torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "coo": eye.to_sparse(),
        "uncoalesced": torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)),
        "csr": eye.to_sparse_csr(),
        "csc": eye.to_sparse_csc(),
        "bsr": eye.to_sparse_bsr((2, 2)),
        "bsc": eye.to_sparse_bsc((2, 2)),
        "quantized": torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8),
        "complex64": torch.randn(3, dtype=torch.complex64),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "boolean": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "zero_dimensional": torch.tensor(2.0),
        "uint64": torch.arange(3).to(torch.uint64),
        "expanded": torch.tensor([0.5]).expand(4),
        "overlapping": torch.arange(6.0).as_strided((3, 3), (1, 1)),
        "transposed": torch.randn(3, 4).t(),
        "infinite": torch.full((3, 3), float("-inf")).triu(1),
        "nan": torch.tensor(float("nan")),
    }


class Odd(Small):
    """A buffer of each kind; `moving` ones are replaced in the second call."""

    def __init__(self, persistent: bool, moving: bool) -> None:
        super().__init__()
        self.moves, self.calls = moving, 0
        for name, value in odd_buffers().items():
            self.register_buffer(name, value, persistent=persistent)

    def look(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.moves and self.calls == 2:
            for name, value in odd_buffers().items():
                setattr(self, name, value)
        return x


class Subclass(Tensor):
    pass


def refused_buffers() -> dict[str, Tensor]:
    return {
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "subclass": torch.randn(3).as_subclass(Subclass),
        "meta": torch.empty(3, device="meta"),
        "per channel": torch.quantize_per_channel(
            torch.randn(4, 2), torch.ones(4), torch.zeros(4), 0, torch.quint8
        ),
    }


class Refused(Small):
    def __init__(self, kind: str, place: str = "odd") -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer(place, refused_buffers()[kind])


# --- get_extra_state ---


class Extra(Small):
    """Nested containers, tensors, and what NumPy has."""

    def make(self) -> None:
        self.calls, self.inner = 0, ExtraInside()

    def look(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x) * (1 + self.calls / 10)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "nested": [(1, None, "a"), {"b": 2.5, 3: b"x"}, {4}]}

    def set_extra_state(self, state: Any) -> None:
        assert state["nested"] == [(1, None, "a"), {"b": 2.5, 3: b"x"}, {4}]
        self.calls = state["calls"]


class ExtraInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total = np.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.total += 1
        return x + float(self.total[0]) / 10

    def get_extra_state(self) -> Any:
        return {"total": self.total, "tensor": torch.from_numpy(self.total)}

    def set_extra_state(self, state: Any) -> None:
        self.total = state["total"]


class ExtraTensor(Small):
    def get_extra_state(self) -> Any:
        return torch.tensor([1, 2])

    def set_extra_state(self, state: Any) -> None:
        assert state.tolist() == [1, 2]


class ExtraWithoutSet(Small):
    def get_extra_state(self) -> Any:
        return 1


class ExtraObject(ExtraTensor):
    def get_extra_state(self) -> Any:
        return {"noise": Noise()}


# --- validation, modes, factories ---


class Overflows(Small):
    """Finite in training; its evaluation at step 4 is not."""

    def __init__(self, value: str = "nan") -> None:
        super().__init__()
        self.value = float(value)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def look(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return x * self.value if not self.training and int(self.calls) == 4 else x


class FrozenNorm(Small):
    """Fine-tuning with the statistics of a batch norm left alone."""

    def make(self) -> None:
        self.norm = nn.BatchNorm1d(8)
        self.norm.requires_grad_(False).eval()

    def look(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def in_eval_mode() -> nn.Module:
    return Counter().eval()


class Pretrained(Small):
    """As Hugging Face's models are."""

    @classmethod
    def from_pretrained(cls) -> "Pretrained":
        return cls().eval()


class Adapted(nn.Module):
    """A pretrained model with a new layer inside, as LoRA's; or frozen beside one."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.base = Pretrained.from_pretrained()
        if frozen:
            self.base.requires_grad_(False)
        self.base.hidden = nn.Linear(8, 8).requires_grad_(not frozen)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        return {"logits": self.base(**batch)["logits"] * self.scale}


class Lazy(Small):
    def make(self) -> None:
        self.head = nn.LazyLinear(VOCAB)
