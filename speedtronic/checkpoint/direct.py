"""Writing large files past the page cache.

Copying a checkpoint into the page cache, and the cache's bookkeeping, costs the training more
processor time than everything else about a save. O_DIRECT hands whole aligned blocks from one small
buffer to the disk instead: docs/decisions/direct-writes.md has the figures.
"""

import errno
import fcntl
import io
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_BYTES = 8 * 2**20  # a multiple of every sector and page size
O_DIRECT = getattr(os, "O_DIRECT", 0)  # there is none outside Linux


class DirectFile(io.RawIOBase):
    """A new file for sequential writing; small ones, and the tail, take the ordinary way.

    Where the file system knows no O_DIRECT everything does.

    Args:
        path: must not exist.

    Raises:
        OSError: as `open`; as `write` from `write`, `flush` and `close`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = str(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)  # less what the umask takes away
        self._block: np.ndarray[Any, Any] | None = None
        self._filled = 0
        self._direct = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        """Take all of `data`."""
        source = np.frombuffer(data, dtype=np.uint8)
        if self._block is None:
            # Memory of its own pages, so that it is aligned as O_DIRECT demands.
            self._block = np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), dtype=np.uint8)
        taken = 0
        while taken < source.size:
            count = min(source.size - taken, BLOCK_BYTES - self._filled)
            # NumPy lets go of the interpreter while it copies; a memoryview does not.
            self._block[self._filled : self._filled + count] = source[taken : taken + count]
            self._filled += count
            taken += count
            if self._filled == BLOCK_BYTES:
                self._use_direct(True)
                self._drain()
        return source.size

    def flush(self) -> None:
        """Hand everything to the kernel; what is written after this goes through its cache."""
        if self._filled:
            self._use_direct(False)
            self._drain()

    def close(self) -> None:
        """Give the file up as it is; what has not been flushed is lost."""
        if not self.closed:
            self._filled = 0
            self._block = None
            os.close(self._descriptor)
        super().close()

    def _drain(self) -> None:
        assert self._block is not None
        rest = self._block.data[: self._filled]
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._use_direct(False)  # the file system refuses it only now, or is nearly full
        self._filled = 0

    def _use_direct(self, wanted: bool) -> None:
        wanted = wanted and O_DIRECT != 0 and self._aligned()
        if wanted == self._direct:
            return
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._descriptor, fcntl.F_SETFL, flags | O_DIRECT if wanted else flags & ~O_DIRECT
            )
        except OSError:  # tmpfs and some others know no O_DIRECT
            return
        self._direct = wanted

    def _aligned(self) -> bool:
        """After a flush in the middle no block lies at a multiple of the sector size any more."""
        return os.lseek(self._descriptor, 0, os.SEEK_CUR) % mmap.PAGESIZE == 0
