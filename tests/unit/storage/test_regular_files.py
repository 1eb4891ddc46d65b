"""A run's own files: replaced whole and durably, read up to a bound, never through a link."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from speedtronic.errors import CorruptError, OutputDirError, StorageError, StorageFullError
from speedtronic.storage import regular_files as run_directory
from speedtronic.storage.regular_files import (
    disk_errors,
    open_to_append,
    read_bytes,
    read_json,
    read_text,
    replace_text,
)
from speedtronic.storage.strict_json import strict_json
from tests.tiny import names


def _socket(path: Path) -> None:
    """A path to a socket may have 108 bytes only, so it is named from inside."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


OTHER_KINDS: dict[str, Callable[[Path], None]] = {
    "a link": lambda path: path.symlink_to("victim"),
    "a link, ": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": Path.mkdir,
}


@pytest.fixture(params=OTHER_KINDS)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A path at which something stands that is no regular file, and what it is."""
    (tmp_path / "victim").write_text("precious")
    path = tmp_path / "run.json"
    OTHER_KINDS[request.param](path)
    return path, request.param


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a file.json"
    replace_text(path, '{"ä": 1}\n')
    assert (read_text(path), read_json(path)) == ('{"ä": 1}\n', {"ä": 1})
    replace_text(path, "[")
    assert read_bytes(path) == b"["
    assert names(tmp_path) == [path.name]


def test_a_link_a_pipe_and_the_like_are_refused_at_once(other: tuple[Path, str]) -> None:
    path, kind = other
    before = path.lstat()
    with pytest.raises(CorruptError, match=rf"run\.json is {kind}"):
        read_text(path)
    for write in (open_to_append, lambda path: replace_text(path, "new")):
        with pytest.raises(OutputDirError, match=rf"cannot write .*run\.json: it is {kind}"):
            write(path)
    assert (path.parent / "victim").read_text() == "precious"
    assert path.lstat() == before
    assert names(path.parent) == ["run.json", "victim"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\0" * 4096, "it holds zeros only"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8 text"),
        (b'{"a": 1', "it is not JSON"),
        (b"[1]", "it holds no JSON object"),
        (b"[" * 10**5, "it is nested too deeply"),
        (b'{"a": "' + b"x" * 100 + b'"}', "larger than"),
    ],
)
def test_damage_has_a_line_with_the_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(CorruptError) as caught:
        read_json(path, 100 if b"x" in content else 2**20)
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_absurd_size_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with path.open("wb") as file:
        file.truncate(10**12)  # a hole, no blocks
    with pytest.raises(CorruptError, match="larger than 1 MiB"):
        read_bytes(path, 2**20)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "run.json")


def test_it_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        at = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        done.append("directory" if at == tmp_path else "file")
        real_sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        done.append("rename")
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    replace_text(tmp_path / "run.json", "new")
    assert done == ["file", "rename", "directory"]


@pytest.mark.parametrize("at", ["fsync", "replace", "write"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path = tmp_path / "run.json"
    replace_text(path, "old")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    owner = Path if at == "replace" else os
    monkeypatch.setattr(owner, "open" if at == "write" else at, refuse)
    with pytest.raises(StorageError, match=r"cannot write .*run\.json: Input/output error"):
        replace_text(path, "new")
    monkeypatch.undo()
    assert read_text(path) == "old"
    assert names(tmp_path) == ["run.json"]


def test_temporaries_of_dead_writers_go_and_nothing_else(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / ".run.json.tmp").symlink_to(victim)
    (tmp_path / f".run.json.new-{'0' * 16}").write_text("half")
    others = [".config.yaml.new-" + "0" * 16, ".run.json.new-notours", "xrun.json.tmp"]
    for name in others:
        (tmp_path / name).write_text("")
    replace_text(tmp_path / "run.json", "new")
    assert names(tmp_path) == sorted([*others, "run.json", "victim"])
    assert victim.read_text() == "precious"


def test_new_files_have_the_usual_permissions(tmp_path: Path) -> None:
    replace_text(tmp_path / "a", "")
    os.close(open_to_append(tmp_path / "b"))
    (tmp_path / "c").touch()
    modes = {(tmp_path / name).stat().st_mode for name in "abc"}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError)]
    + [(number, StorageError) for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)]
    + [(number, OutputDirError) for number in (errno.EACCES, errno.EROFS, errno.ENOTDIR)],
)
def test_what_can_pass_is_told_from_what_a_person_has_to_mend(
    number: int, kind: type[Exception]
) -> None:
    with (
        pytest.raises(kind, match=r"cannot write run\.json") as caught,
        disk_errors("cannot write run.json"),
    ):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind


def test_json_is_strict() -> None:
    value = {"a": float("nan"), "b": [float("inf"), {"c": (-float("inf"), 2)}], "d": 0.5}
    assert strict_json(value) == '{"a": null, "b": [null, {"c": [null, 2]}], "d": 0.5}'
    assert run_directory.LIMIT_BYTES < 2**30
