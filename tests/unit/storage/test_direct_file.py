"""Writing past the page cache gives the bytes that any other writing gives."""

import os
import threading
from pathlib import Path

import pytest

from speedtronic.storage import direct_file as direct
from speedtronic.storage.direct_file import DirectFile

BLOCK = 64 * 1024


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "BLOCK_BYTES", BLOCK)


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [1], [BLOCK], [BLOCK - 1, 2], [3 * BLOCK + 17], [10] * 500, [BLOCK, BLOCK, 5]],
)
def test_writes_what_it_is_given(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    file = DirectFile(tmp_path / "file")
    for piece in pieces:
        assert file.write(memoryview(piece)) == len(piece)
    file.flush()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_goes_on_after_a_flush_in_the_middle(tmp_path: Path) -> None:
    pieces = [os.urandom(100), os.urandom(3 * BLOCK), os.urandom(7)]
    with DirectFile(tmp_path / "file") as file:
        for piece in pieces:
            file.write(piece)
            file.flush()
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_whole_blocks_pass_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = []
    write = os.write

    def noting(descriptor: int, data: bytes) -> int:
        flags = direct.fcntl.fcntl(descriptor, direct.fcntl.F_GETFL)
        ways.append((bool(flags & direct.O_DIRECT), len(data)))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", noting)
    with DirectFile(tmp_path / "file") as file:
        if not takes_direct(tmp_path):
            pytest.skip("this file system has no O_DIRECT")
        file.write(os.urandom(2 * BLOCK + 9))
        file.flush()
    assert ways == [(True, BLOCK), (True, BLOCK), (False, 9)]


def takes_direct(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "probe", os.O_CREAT | os.O_WRONLY | direct.O_DIRECT))
    except OSError:
        return False
    return bool(direct.O_DIRECT)


def test_a_file_system_that_refuses_is_written_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, refused = os.write, []

    def refusing(descriptor: int, data: bytes) -> int:
        flags = direct.fcntl.fcntl(descriptor, direct.fcntl.F_GETFL)
        if flags & direct.O_DIRECT:
            refused.append(len(data))
            raise OSError(22, "Invalid argument")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refusing)
    content = os.urandom(2 * BLOCK + 9)
    with DirectFile(tmp_path / "file") as file:
        file.write(content)
        file.flush()
    assert (tmp_path / "file").read_bytes() == content
    assert refused or not takes_direct(tmp_path)


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: max(len(data) // 2, 1)]))
    content = os.urandom(2 * BLOCK + 9)
    with DirectFile(tmp_path / "file") as file:
        file.write(content)
        file.flush()
    assert (tmp_path / "file").read_bytes() == content


def test_an_error_is_the_callers_and_an_existing_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DirectFile(tmp_path / "file")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    file.write(os.urandom(BLOCK))
    with pytest.raises(OSError, match="No space left"):
        file.write(os.urandom(BLOCK))
    file.close()
    file.close()


@pytest.mark.parametrize("then", ["flush", "close"])
def test_a_block_that_fails_last_is_not_forgotten(
    then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", failing)
    file = DirectFile(tmp_path / "file")
    file.write(os.urandom(BLOCK))
    if then == "flush":
        with pytest.raises(OSError, match="Input/output"):
            file.flush()
    file.close()  # gives the file up as it is


def test_a_block_is_filled_while_the_one_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go_on = os.write, threading.Event()

    def waiting(descriptor: int, data: bytes) -> int:
        assert go_on.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", waiting)
    content = os.urandom(2 * BLOCK - 1)
    with DirectFile(tmp_path / "file") as file:
        assert file.write(content) == len(content)  # while the first block is not written
        go_on.set()
        file.flush()
    assert (tmp_path / "file").read_bytes() == content
