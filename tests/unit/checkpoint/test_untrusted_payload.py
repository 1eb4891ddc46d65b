"""Files that nothing vouches for: what they may hold, and how everything else is refused."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.checkpoint.untrusted_payload import read_untrusted
from speedtronic.errors import CorruptError, StorageError
from tests.crafted import Call, pt_file, tensor, zip_file

WORDS = b"\x41" * 8 * 624


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def test_what_torch_saves_is_read_as_torch_reads_it() -> None:
    shared = torch.randn(3, 4)
    state = {
        "plain": [None, True, -1, 2**70, 1.5, "text", (1, 2), {"a": {3: b"bytes"}}],
        "ordered": OrderedDict(b=1, a=2),
        "transposed": shared.t(),
        "part": shared[1:, 2],
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
        "expanded": torch.tensor([0.5]).expand(16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        **{str(t): torch.ones(3).to(t) for t in (torch.bool, torch.int8, torch.bfloat16)},
        **{str(t): torch.ones(3).to(t) for t in (torch.float8_e4m3fn, torch.complex64)},
    }
    read, expected = read_untrusted(saved(state)), state
    assert read["plain"] == expected["plain"]
    assert list(read["ordered"].items()) == [("b", 1), ("a", 2)]
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert read[key].dtype == value.dtype and read[key].stride() == value.stride()
            same = read[key].view(torch.uint8) if value.itemsize == 1 else read[key]
            assert torch.equal(same, value.view(torch.uint8) if value.itemsize == 1 else value)


def test_tied_tensors_stay_tied() -> None:
    weight = torch.ones(3)
    read = read_untrusted(saved({"a": weight, "b": weight}))
    assert read["a"].untyped_storage().data_ptr() == read["b"].untyped_storage().data_ptr()


def test_the_versions_of_modules_are_kept() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert read_untrusted(saved({"model": state}))["model"]._metadata == state._metadata


HOSTILE: dict[str, Any] = {
    "numpy.ndarray": Call(np.ndarray, (624,), "O", WORDS),
    "type 'O'": Call(np.dtype, "O", False, True),
    "type 'f8'": Call(np.dtype, "f8", False, True),
    "posix.mkdir": Call(os.mkdir, "was here"),
    "__builtin__.eval": Call(eval, "1"),
    "torch._utils._rebuild_sparse_tensor": Call(torch._utils._rebuild_sparse_tensor, 0, ()),
    "torch.storage._load_from_bytes": Call(torch.storage._load_from_bytes, b""),
    "collections.Counter": Call(__import__("collections").Counter),
    "other than for bytes": Call(__import__("_codecs").encode, "x", "rot13"),
    "not built from nothing": Call(OrderedDict, [("a", 1)]),
    "no random state": Call(np._core.multiarray._reconstruct, np.ndarray, (2**40,), b"b"),
}


@pytest.mark.parametrize("named", HOSTILE)
def test_nothing_else_is_constructed_or_called(named: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptError) as caught:
        read_untrusted(pt_file({"model": HOSTILE[named]}))
    assert named in str(caught.value)
    assert not Path("was here").exists()


@pytest.mark.parametrize("state", [(1, (624,), None, False, WORDS), (1, (5,), 0, 0, b"x", 0), "x"])
def test_an_array_is_built_of_the_right_numbers_only(state: Any) -> None:
    array = Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=state)
    with pytest.raises(CorruptError, match="no random state"):
        read_untrusted(pt_file({"numpy": array}))


WRONG_TENSORS: dict[str, tuple[Any, str]] = {
    "more values than bytes": (tensor(values=2**40), "has 8 bytes, expected 4398046511104"),
    "fewer": (tensor(values=1), "has 8 bytes, expected 4"),
    "a shape that does not fit": (tensor(shape=(3,)), "has no room"),
    "an offset outside": (tensor(offset=1), "has no room"),
    "a stride outside": (tensor(stride=(2,)), "has no room"),
    "an endless view": (tensor(shape=(2**40,), stride=(0,)), "has no room"),
    "a negative offset": (tensor(offset=-1), "-1 is no number"),
    "a negative stride": (tensor(stride=(-1,)), "-1 is no number"),
    "a shape of text": (tensor(shape=("2",)), "'2' is no number"),
    "no shape": (tensor(shape=2), "has no shape"),
    "too many dimensions": (tensor(shape=(1,) * 100, stride=(1,) * 100), "100 dimensions"),
    "hooks": (tensor(hooks=OrderedDict(a=1)), "not made of"),
    "no storage": (tensor(storage=[1]), "not made of a storage"),
    "another record": (tensor(key="1"), "record data/1 is missing"),
    "another kind": (tensor(kind="module"), "no storage"),
}


@pytest.mark.parametrize("what", WRONG_TENSORS)
def test_a_tensor_must_fit_the_bytes_that_are_there(what: str) -> None:
    value, message = WRONG_TENSORS[what]
    with pytest.raises(CorruptError, match=message):
        read_untrusted(pt_file({"model": {"w": value}}))


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def looped() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def endless() -> list[Any]:
    """Some hundred lists that would be 2 ** 100 values, written out."""
    value: list[Any] = [0]
    for _ in range(90):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (nested(200), "nested too deeply"),
        (looped(), "holds itself"),
        (endless(), "too many values"),
        ("\ud800", "UnicodeEncodeError"),
    ],
    ids=["nested", "looped", "endless", "surrogate"],
)
def test_containers_have_bounds(value: Any, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        read_untrusted(pt_file({"model": value}))


def test_opcodes_that_torch_never_writes_are_refused() -> None:
    with pytest.raises(CorruptError, match="the opcode FRAME"):
        read_untrusted(pt_file({"model": Call(os.mkdir, "x")}, protocol=4))
    memo = b"\x80\x02]r\xff\xff\xff\x7f."  # would take 16 GiB for its memo
    with pytest.raises(CorruptError, match="memo is out of order"):
        read_untrusted(zip_file({"data.pkl": memo}))


def test_a_zip_has_plain_records_only() -> None:
    content = pickle.dumps({}, 2)
    bomb = zip_file({"data.pkl": content, "data/0": bytes(10**6)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(CorruptError, match="no plain record"):
        read_untrusted(bomb)
    whole = zip_file({"data.pkl": content, "data/0": bytes(10**4), "data/1": b"x"})
    size = (10**4).to_bytes(4, "little")
    entry = whole.rindex(b"PK\x01\x02")  # the directory's entry of the last record
    overlapping = bytearray(whole)
    overlapping[entry + 20 : entry + 28] = size + size
    with pytest.raises(CorruptError, match="no plain record"):
        read_untrusted(bytes(overlapping))
    big_endian = zip_file({"data.pkl": content, "byteorder": b"big"})
    with pytest.raises(CorruptError, match="little-endian"):
        read_untrusted(big_endian)


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(24, "Too many open files"),
        ImportError("No module named 'encodings.x'"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_machine_in_trouble_says_nothing_of_the_file(
    monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise trouble

    monkeypatch.setattr("zipfile.ZipFile", refuse)
    with pytest.raises(StorageError, match="payload does not load here and now: "):
        read_untrusted(b"")
