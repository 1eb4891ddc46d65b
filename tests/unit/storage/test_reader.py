"""A read that the system puts off (EAGAIN) is an error, and never the end of a file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from speedtronic.storage.blocking_reader import reader


@pytest.mark.parametrize(
    "read",
    [lambda file: file.read(), lambda file: file.read(3), lambda file: file.readinto(bytearray(9))],
)
def test_nothing_there_yet_is_no_end(read: Callable[[BinaryIO], object]) -> None:
    source, target = os.pipe2(os.O_NONBLOCK)
    try:
        with reader(source) as file, pytest.raises(BlockingIOError, match="temporarily"):
            read(file)
    finally:
        os.close(target)


def test_reads_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    with reader(os.open(path, os.O_RDONLY)) as file:
        assert file.read(5) == bytes(range(5))
        assert file.read() == path.read_bytes()[5:]
    with reader(os.open(path, os.O_RDONLY)) as file:
        piece = bytearray(10_000)
        assert file.readinto(piece) == 10_000  # type: ignore[attr-defined]
        assert piece == path.read_bytes()[:10_000]
