"""Reads files so that a read which the system puts off (EAGAIN) is an error."""

import errno
import io
import os
from typing import Any, BinaryIO, TypeVar

_T = TypeVar("_T")


class _BlockingFile(io.FileIO):
    """Raises BlockingIOError where a read fails with EAGAIN.

    Python itself returns None then, which a buffered reader takes for the end of the file.
    """

    def readinto(self, buffer: Any) -> int:
        count: int = _arrived(super().readinto(buffer), self.name)
        return count

    def readall(self) -> bytes:
        return _arrived(super().readall(), self.name)

    def read(self, size: int | None = -1) -> bytes:
        data: bytes = _arrived(super().read(-1 if size is None else size), self.name)
        return data


def _arrived(result: "_T | None", name: Any) -> _T:
    """Return `result` unless it is None.

    Raises:
        BlockingIOError: it is.
    """
    if result is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), name)
    return result


def reader(descriptor: int) -> BinaryIO:
    """Return a buffered reader that owns `descriptor`; a read that cannot be done is an OSError."""
    return io.BufferedReader(_BlockingFile(descriptor, "rb"))
