"""Writes large files past the page cache.

Copying a checkpoint into the page cache costs training more processor time than everything else
about a save. With O_DIRECT, aligned blocks go from two small buffers straight to the disk: while
one is written, the other is filled. docs/decisions/direct-writes.md has the figures.
"""

import errno
import fcntl
import io
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np

BLOCK_BYTES = 8 * 2**20  # a multiple of every sector and page size
O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only


class DirectFile(io.RawIOBase):
    """A new file for sequential writing that writes full blocks with O_DIRECT.

    Small files and the end of a file are written through the page cache, and so is everything on a
    file system without O_DIRECT. Blocks are written in another thread; an error there is raised by
    the next `write` or `flush`.

    Args:
        path: of the file, which must not exist.

    Raises:
        OSError: as `open`; as `write` from `write`, `flush` and `close`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.name = str(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)  # less what the umask takes away
        self._block: np.ndarray[Any, Any] | None = None
        self._spare: np.ndarray[Any, Any] | None = None
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        """Write all of `data`, and return its length."""
        source = np.frombuffer(data, dtype=np.uint8)
        if self._block is None:
            self._block = _aligned_block()
        taken = 0
        while taken < source.size:
            count = min(source.size - taken, BLOCK_BYTES - self._filled)
            # NumPy releases the GIL while it copies; a memoryview does not.
            self._block[self._filled : self._filled + count] = source[taken : taken + count]
            self._filled += count
            taken += count
            if self._filled == BLOCK_BYTES:
                self._hand_over()
        return source.size

    def flush(self) -> None:
        """Write what is buffered; later writes go through the page cache."""
        self._settle()
        if self._filled:
            assert self._block is not None
            self._use_direct(False)
            self._write_out(self._block.data[: self._filled])
            self._filled = 0

    def close(self) -> None:
        """Close the file; whatever has not been flushed is lost."""
        if not self.closed:
            if self._thread is not None:
                self._thread.shutdown()
            self._writing = None
            self._filled = 0
            self._block = self._spare = None
            os.close(self._descriptor)
        super().close()

    def _hand_over(self) -> None:
        """Start writing the full block in the thread, and switch to the other buffer."""
        self._settle()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="direct-write")
        if self._spare is None:
            self._spare = _aligned_block()
        assert self._block is not None
        full, self._block, self._spare = self._block, self._spare, self._block
        self._filled = 0
        self._writing = self._thread.submit(self._write_block, full)

    def _settle(self) -> None:
        """Wait until no block is being written; raise its error, if it failed."""
        if self._writing is not None:
            wait([self._writing])  # an interrupt here loses nothing
            writing, self._writing = self._writing, None
            writing.result()

    def _write_block(self, block: "np.ndarray[Any, Any]") -> None:
        self._use_direct(True)
        self._write_out(block.data)

    def _write_out(self, rest: memoryview) -> None:
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._use_direct(False)  # the file system refuses it now, or is nearly full

    def _use_direct(self, wanted: bool) -> None:
        wanted = wanted and O_DIRECT != 0 and self._aligned()
        if wanted == self._direct:
            return
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._descriptor, fcntl.F_SETFL, flags | O_DIRECT if wanted else flags & ~O_DIRECT
            )
        except OSError:  # tmpfs and some others do not support O_DIRECT
            return
        self._direct = wanted

    def _aligned(self) -> bool:
        """Whether the position is a multiple of the page size; after a `flush` it rarely is."""
        return os.lseek(self._descriptor, 0, os.SEEK_CUR) % mmap.PAGESIZE == 0


def _aligned_block() -> "np.ndarray[Any, Any]":
    """Allocate a block of whole pages, aligned as O_DIRECT requires."""
    return np.frombuffer(mmap.mmap(-1, BLOCK_BYTES), dtype=np.uint8)
