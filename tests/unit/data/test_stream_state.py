import io
from collections import OrderedDict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.data.stream_state import TAG, from_portable, to_portable
from speedtronic.errors import DataError

Point = namedtuple("Point", "x y")

VALUES = [
    {},
    None,
    True,
    2**127 + 1,
    -(2**70),
    1e-300,
    "text",
    b"",
    b"\0\xff",
    bytearray(b"ab"),
    [1, (2, (), [3])],
    {"a": {"b": [1.5, None]}},
    {1: 2, None: 3, False: 4},
    {(1, "x"): "tuple", b"k": "bytes"},
    {TAG: "mine", "items": 3},
    np.float64(0.1),
    np.int8(-3),
    np.bool_(True),
    np.str_("é"),
    np.datetime64("2020-01-01T00:00"),
    np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::2],
    np.zeros((0, 2)),
    np.array(3.5),
    np.array(["a", "bcd"]),
    np.array([1 + 2j]),
    np.random.default_rng(3).bit_generator.state,
    np.random.RandomState(3).get_state(),
    torch.arange(3, dtype=torch.uint8),
    torch.Generator().manual_seed(1).get_state(),
]


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(map(repr, a)) == list(map(repr, b))
        for one, other in zip(a.values(), b.values(), strict=True):
            assert_same(one, other)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
        assert b.flags.writeable
    else:
        assert a == b


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_survives_a_checkpoint_exactly(value: Any) -> None:
    file = io.BytesIO()
    torch.save({"source": to_portable(value)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["source"]
    assert_same(from_portable(loaded), value)


def test_containers_are_copied() -> None:
    inner = [1]
    kept = to_portable({"a": inner})
    inner.append(2)
    assert kept == {"a": [1]}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1, 2}, r"state_dict\(\) is a builtins\.set, which a checkpoint cannot hold"),
        ({"a": [0, deque([1])]}, r"state_dict\(\)\['a'\]\[1\] is a collections\.deque"),
        (OrderedDict(a=1), "is a collections.OrderedDict"),
        (Point(1, 2), "is a .*Point"),
        (np.array([object()]), "is a numpy.ndarray"),
        (np.zeros(2, dtype=[("a", "i4")]), "is a numpy.ndarray"),
        (np.random.default_rng(), "is a numpy.*Generator"),
        ({object(): 1}, "is a builtins.object"),
    ],
)
def test_anything_else_is_refused_by_type_and_place(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_portable(value)
