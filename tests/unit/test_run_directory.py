"""A directory knows where it was, and so when it is a copy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from speedtronic.errors import OutputDirError
from speedtronic.run_directory import displacement, read_place, record_place
from tests.tiny import names, tree


def test_it_is_where_it_was(tmp_path: Path) -> None:
    assert displacement(tmp_path) == ""  # nothing is known
    record_place(tmp_path, "r")
    assert displacement(tmp_path) == ""
    assert read_place(tmp_path)["run_id"] == "r"
    before = tree(tmp_path)
    record_place(tmp_path, "r")
    assert tree(tmp_path) == before
    record_place(tmp_path, "s")
    assert read_place(tmp_path)["run_id"] == "s"
    assert names(tmp_path) == ["run.json"]


def test_a_copy_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record_place(tmp_path / "a", "r")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert displacement(tmp_path / "b").startswith(f"copied or moved from {tmp_path / 'a'} on ")
    record_place(tmp_path / "b", "r")  # it goes on here
    assert displacement(tmp_path / "b") == ""


def test_a_copy_under_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    record_place(tmp_path / "a", "r")
    (tmp_path / "a").rename(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "a")
    assert displacement(tmp_path / "a") == "a copy of the directory that had this path before"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file_system": "0"}, "on another file system than before"),
        ({"file_system": "0", "host": "elsewhere"}, ""),  # says nothing there
        ({"host": "elsewhere"}, ""),  # a shared disk, or a container anew
    ],
)
def test_file_systems(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    record_place(tmp_path, "r")
    stored = read_place(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(stored | change))
    assert displacement(tmp_path) == said


def test_a_damaged_record_says_nothing(tmp_path: Path) -> None:
    for content in ("", "[]", "{", "\0"):
        (tmp_path / "run.json").write_text(content)
        assert (read_place(tmp_path), displacement(tmp_path)) == ({}, "")


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(OutputDirError, match=r"cannot write .*run\.json"):
        record_place(tmp_path, "r")
