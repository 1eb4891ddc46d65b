"""A file system of two files, `disk` and `notes`, that logs what is done to them, in order.

`disk` is an image of a disk; a loop device is attached to it. Each write to it and each flush of it
is logged, then done. What a process writes to `notes` is logged in the same order, so that a log
tells what was on the way to the disk when somebody was told something.

    python -m tests.powerloss.disk MOUNTPOINT IMAGE LOG     until it is unmounted

Requests are answered one after the other, so a flush comes after the writes answered before it.
"""

import errno
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import mfusepy

from tests.powerloss.log import FLUSH, NOTE, WRITE, pack

DISK, NOTES = "/disk", "/notes"


class LoggedDisk(mfusepy.Operations):
    """Args:
    image: what `disk` holds; written through.
    log: created; see `log` for its format.
    """

    use_ns = True

    def __init__(self, image: Path, log: Path) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._log = log.open("wb", buffering=0)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path not in (DISK, NOTES):
            raise mfusepy.FuseOSError(errno.ENOENT)
        size = os.fstat(self._image).st_size if path == DISK else 0
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", DISK[1:], NOTES[1:]]

    def open(self, path: str, fi: Any) -> int:
        fi.direct_io = 1  # no cache of the kernel's between the loop device and this log
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        return 0  # somebody opens `notes` as people do

    def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
        return os.pread(self._image, size, offset) if path == DISK else b""

    def write(self, path: str, data: bytes, offset: int, fh: Any) -> int:
        if path == NOTES:
            self._note(NOTE, 0, data)
            return len(data)
        self._note(WRITE, offset, data)
        return os.pwrite(self._image, data, offset)

    def fsync(self, path: str, datasync: int, fh: Any) -> int:
        self._note(FLUSH, 0, b"")
        return 0

    def _note(self, kind: bytes, offset: int, data: bytes) -> None:
        self._log.write(pack(kind, offset, len(data), time.time()) + data)


if __name__ == "__main__":
    mountpoint, image, log = sys.argv[1:]
    mfusepy.FUSE(
        LoggedDisk(Path(image), Path(log)),
        mountpoint,
        raw_fi=True,
        foreground=True,
        nothreads=True,
    )
