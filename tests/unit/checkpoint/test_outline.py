"""What is read of a payload without its tensors, whatever is in the file."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from speedtronic.checkpoint import layout, open_storage, outline
from speedtronic.errors import CorruptError
from speedtronic.storage.local import LocalStorage
from tests.unit.checkpoint.states import open_store, state_at

NAME = layout.payload_name(2)


class Counting(LocalStorage):
    """Adds up what is read."""

    num_bytes = 0

    def open(self, name: str) -> BinaryIO:
        storage, file = self, super().open(name)

        class Counted(io.BufferedReader):
            def read(self, size: int | None = -1) -> bytes:
                content = super().read(size)
                storage.num_bytes += len(content)
                return content

        return Counted(file.detach())  # type: ignore[attr-defined]


def test_the_plain_values_of_a_payload_of_ours(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.save(state_at(2))
    found = outline.read_outline(open_storage(str(tmp_path)), NAME)
    assert (found["run_id"], found["step"], found["loss"]) == (store.run_id, 2, 1.5)
    assert found["scaler"] is None
    assert found["data"] == {"samples": 8, "epoch": 0, "seed": 7, "shuffle": True}


def test_tensors_are_not_read(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.zeros(2**23)}, "run_id": "mine"}, tmp_path / NAME)
    storage = Counting(tmp_path)
    assert outline.read_outline(storage, NAME)["run_id"] == "mine"
    assert storage.num_bytes < 2**18


def archive(path: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("archive/data.pkl", pickled)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path("executed").touch, ()


HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no zip": lambda path: path.write_bytes(b"rot" * 999),
    "no pickle in it": lambda path: zipfile.ZipFile(path, "w").close(),
    "no pickle": lambda path: archive(path, b"rot"),
    "a list": lambda path: archive(path, pickle.dumps([1])),
    "no end": lambda path: archive(path, pickle.dumps({"run_id": "x"})[:-1]),
    "an empty stack": lambda path: archive(path, b"\x80\x02s."),
    "a mark that is not there": lambda path: archive(path, b"\x80\x02}u."),
    "what was never remembered": lambda path: archive(path, b"\x80\x02h\x07."),
    "a string of 2**60 bytes": lambda path: archive(path, b"\x80\x04\x8d" + b"\0" * 7 + b"\x10"),
    "much, compressed": lambda path: archive(
        path, pickle.dumps({"a": "x" * 2**27}), zipfile.ZIP_DEFLATED
    ),
    "much": lambda path: archive(path, pickle.dumps({"a": "x" * 2**25})),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_anything_else_is_refused_in_words(tmp_path: Path, kind: str) -> None:
    HOSTILE[kind](tmp_path / NAME)
    storage = Counting(tmp_path)
    with pytest.raises(CorruptError, match="payload"):
        outline.read_outline(storage, NAME)
    assert storage.num_bytes <= outline.MAX_BYTES + 1


def test_nothing_is_executed_or_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / NAME, pickle.dumps({"run_id": "mine", "model": Bomb()}))
    assert outline.read_outline(open_storage(str(tmp_path)), NAME) == {"run_id": "mine"}
    # An unpickler makes a table of four thousand million entries for this one.
    archive(tmp_path / NAME, b"\x80\x02}r\xff\xff\xff\xff.")
    assert outline.read_outline(open_storage(str(tmp_path)), NAME) == {}
    assert not (tmp_path / "executed").exists()
