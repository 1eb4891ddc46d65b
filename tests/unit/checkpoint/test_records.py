"""Manifest and pointer: exactly the bytes that were written, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from speedtronic.checkpoint.records import Manifest, Pointer, canonical_json
from speedtronic.errors import CorruptError, UnsupportedFormatError
from tests.unit.checkpoint.states import open_store, state_at

Read = Callable[[bytes], object]
READERS: dict[str, Read] = {
    "step_000000000004.json": lambda data: Manifest.from_file(data, 4),
    "latest.json": Pointer.from_bytes,
}
RECORDS = pytest.mark.parametrize("name", READERS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    open_store(root).save(state_at(4))
    return root


@RECORDS
def test_every_flipped_bit_is_noticed(written: Path, name: str) -> None:
    data = (written / name).read_bytes()
    READERS[name](data)
    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptError):
            READERS[name](bytes(damaged))


@RECORDS
def test_every_truncation_is_noticed(written: Path, name: str) -> None:
    data = (written / name).read_bytes()
    for size in range(len(data)):
        with pytest.raises(CorruptError):
            READERS[name](data[:size])


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """The same record after `change`, in the same layout, its checksum left alone."""

    def apply(data: bytes) -> bytes:
        fields = json.loads(data)
        change(fields)
        return (json.dumps(fields, indent=2) + "\n").encode()

    return apply


NOT_OURS: dict[str, Callable[[bytes], bytes]] = {
    "another value": rewritten(lambda fields: fields.update(samples=17)),
    "a negative one": rewritten(lambda fields: fields.update(samples=-1)),
    "text for a number": rewritten(lambda fields: fields.update(step="4")),
    "true for a number": rewritten(lambda fields: fields.update(step=True)),
    "a number beyond all bounds": lambda data: data.replace(b": 16,", b": 1" + b"0" * 5000 + b","),
    "infinity": rewritten(lambda fields: fields.update(tokens=float("inf"))),
    "half a character": rewritten(lambda fields: fields.update(run_id="\ud800")),
    "a key more": rewritten(lambda fields: fields.update(note="")),
    "a key less": rewritten(lambda fields: fields.pop("tokens")),
    "no checksum": rewritten(lambda fields: fields.pop("checksum")),
    "a list": lambda data: b"[" + data + b"]",
    "nested too deeply": lambda data: b"[" * 100_000,
    "not UTF-8": lambda data: data.replace(b"step", b"st\xffp"),
    "another layout": lambda data: canonical_json(json.loads(data)),
    "Windows line ends": lambda data: data.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "nothing": lambda data: b"",
    "zeroes": lambda data: bytes(len(data)),
}


@RECORDS
@pytest.mark.parametrize("change", NOT_OURS)
def test_refuses_what_it_did_not_write(written: Path, name: str, change: str) -> None:
    data = NOT_OURS[change]((written / name).read_bytes())
    with pytest.raises(CorruptError):
        READERS[name](data)


@pytest.mark.parametrize("name", ["", "other.pt", "../step_000000000004.pt", "/etc/passwd"])
def test_a_manifest_speaks_of_its_own_payload_only(written: Path, name: str) -> None:
    record = Manifest.from_file((written / "step_000000000004.json").read_bytes(), 4)
    elsewhere = record.model_copy(
        update={"files": [record.payload.model_copy(update={"name": name})]}
    )
    with pytest.raises(CorruptError, match="speaks of"):
        Manifest.from_file(elsewhere.to_bytes(), 4)


def test_a_manifest_belongs_to_one_step(written: Path) -> None:
    with pytest.raises(CorruptError, match="speaks of step 4"):
        Manifest.from_file((written / "step_000000000004.json").read_bytes(), 5)


def test_a_newer_format_asks_for_a_newer_program(written: Path) -> None:
    record = Manifest.from_file((written / "step_000000000004.json").read_bytes(), 4)
    newer = record.model_copy(update={"format_version": 99})
    with pytest.raises(UnsupportedFormatError, match="update speedtronic-flows"):
        Manifest.from_file(newer.to_bytes(), 4)
    fields = json.loads(newer.to_bytes())
    del fields["checksum"]
    fields["a_key_of_the_future"] = 1
    fields["checksum"] = xxhash.xxh3_128_hexdigest(canonical_json(fields))
    with pytest.raises(UnsupportedFormatError):
        Manifest.from_file(json.dumps(fields).encode(), 4)
    fields["checksum"] = 32 * "0"  # a flipped bit in the version is damage
    with pytest.raises(CorruptError):
        Manifest.from_file(json.dumps(fields).encode(), 4)


def test_the_pointer_is_made_of_the_manifest(written: Path) -> None:
    record = Manifest.from_file((written / "step_000000000004.json").read_bytes(), 4)
    assert (written / "latest.json").read_bytes() == record.pointer().to_bytes()
    assert Pointer.from_bytes((written / "latest.json").read_bytes()) == record.pointer()
    assert json.loads((written / "latest.json").read_text())["file"] == "step_000000000004.pt"
