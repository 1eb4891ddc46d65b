"""Reads a payload once, hashes it meanwhile, and decodes it only if the hash is right.

The bytes of a tensor are read directly into the memory of that tensor, so loading needs no more
memory than the file is large. `torch.load` then reads from memory, and where it asks for a tensor
it is given that memory instead of a copy.
"""

import encodings.cp437  # noqa: F401  zipfile imports it while it reads a payload
import io
import struct
import zipfile
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
import xxhash
from torch import UntypedStorage

from speedtronic.errors import CorruptError
from speedtronic.liveness import report_progress

PIECE_BYTES = 4 * 2**20
LENT_BYTES = 64 * 2**10  # a smaller tensor is copied: that costs less than the bookkeeping
LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip record: the lengths of name and extra field


@dataclass(frozen=True)
class Segment:
    """Consecutive bytes of the file; `storage` is their memory if they belong to one tensor."""

    start: int
    content: memoryview
    storage: UntypedStorage | None = None


class Payload(io.RawIOBase):
    """Reads and verifies a payload; then a file in memory that `torch.load` can read.

    Args:
        file: the payload, at its beginning.
        size_bytes: as in the manifest.
        digest: as in the manifest; see `digest.bytes_digest`.

    Raises:
        CorruptError: the file holds other bytes; the message gives expected and found.
        OSError: it cannot be read.
        MemoryError: there is not enough memory for it at the moment.
    """

    def __init__(self, file: BinaryIO, size_bytes: int, digest: str) -> None:
        super().__init__()
        self._segments = _read_segments(file, size_bytes, digest)
        self._starts = [segment.start for segment in self._segments]
        self._size = size_bytes
        self._position = 0
        self._lent: UntypedStorage | None = None

    def map_location(self, storage: UntypedStorage, location: str) -> UntypedStorage:
        """Return the memory that replaces `storage`, just read by `torch.load`."""
        lent, self._lent = self._lent, None
        if lent is None:
            return storage
        assert lent.nbytes() == storage.nbytes()
        return lent

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._position, 0)
        data = bytearray(left if size < 0 else min(size, left))
        self._copy(memoryview(data))
        self._position += len(data)
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        assert self._lent is None, "torch asks for the place of a tensor as soon as it has read it"
        target = memoryview(buffer).cast("B")
        target = target[: max(self._size - self._position, 0)]
        segment = self._segment(self._position)
        if segment.start == self._position and len(segment.content) == len(target):
            self._lent = segment.storage
        if self._lent is None:
            self._copy(target)
        self._position += len(target)
        return len(target)

    def _segment(self, position: int) -> Segment:
        return self._segments[max(bisect_right(self._starts, position) - 1, 0)]

    def _copy(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            segment = self._segment(self._position + done)
            offset = self._position + done - segment.start
            part = segment.content[offset : offset + len(target) - done]
            target[done : done + len(part)] = part
            done += len(part)


def verify_bytes(file: BinaryIO, size_bytes: int, digest: str) -> None:
    """Read a payload once and check its size and digest, without keeping it in memory.

    Raises:
        CorruptError, OSError: as `Payload`.
    """
    _check_size(file, size_bytes)
    hasher, left = xxhash.xxh3_128(), size_bytes
    piece = memoryview(bytearray(PIECE_BYTES))
    while left:
        report_progress("checking a checkpoint, bytes", size_bytes - left, size_bytes)
        part = piece[: min(left, PIECE_BYTES)]
        _fill(file, part)
        hasher.update(part)
        left -= len(part)
    _compare(hasher, digest)


def _read_segments(file: BinaryIO, size_bytes: int, digest: str) -> list[Segment]:
    """Read all segments in order, while a second thread hashes them; check the digest."""
    _check_size(file, size_bytes)
    segments, position = [], 0
    hasher = xxhash.xxh3_128()
    with ThreadPoolExecutor(1) as hashing:

        def take(size: int, storage: UntypedStorage | None = None) -> memoryview:
            nonlocal position
            content = _memory(storage) if storage else memoryview(bytearray(size))
            for start in range(0, size, PIECE_BYTES):
                report_progress("loading a checkpoint, bytes", position + start, size_bytes)
                piece = content[start : start + PIECE_BYTES]
                _fill(file, piece)
                if size_bytes > PIECE_BYTES:
                    hashing.submit(hasher.update, piece)
                else:  # a thread costs more than the hash
                    hasher.update(piece)
            segments.append(Segment(position, content, storage))
            position += size
            return content

        for record in _tensors(file):
            header_end = record.header_offset + LOCAL_HEADER.size
            if not position + LOCAL_HEADER.size <= header_end <= size_bytes:
                break
            header = take(header_end - position)
            take(sum(LOCAL_HEADER.unpack(header[-LOCAL_HEADER.size :])))  # name and padding
            if position + record.file_size > size_bytes:
                break
            take(record.file_size, _allocate(record.file_size))
        take(size_bytes - position)
    report_progress("restoring a checkpoint", computing=True)
    _compare(hasher, digest)
    return segments


def _tensors(file: BinaryIO) -> list[zipfile.ZipInfo]:
    """List the zip records of large tensors, in the order of the file; none if they are unreadable.

    Nothing is verified yet, so they only decide how memory is divided into segments.
    """
    try:
        records = zipfile.ZipFile(file).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error):
        records = []
    finally:
        file.seek(0)
    large = [
        record
        for record in records
        if record.file_size >= LENT_BYTES
        and record.file_size == record.compress_size
        and "/data/" in record.filename
    ]
    return sorted(large, key=lambda record: record.header_offset)


def _allocate(size: int) -> UntypedStorage:
    """Allocate memory as torch does for every tensor."""
    try:
        return torch.empty(size, dtype=torch.uint8).untyped_storage()
    except RuntimeError as error:
        raise MemoryError(str(error)) from error


def _memory(storage: UntypedStorage) -> memoryview:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data


def _fill(file: BinaryIO, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        count = file.readinto(piece[done:])  # type: ignore[attr-defined]
        if not count:
            raise CorruptError("payload ends before its size")
        done += count


def _check_size(file: BinaryIO, size_bytes: int) -> None:
    found_bytes = file.seek(0, io.SEEK_END)
    file.seek(0)
    if found_bytes != size_bytes:
        raise CorruptError(f"payload has {found_bytes} bytes, expected {size_bytes}")


def _compare(hasher: "xxhash.xxh3_128", digest: str) -> None:
    found = f"xxh3_128:{hasher.hexdigest()}"
    if found != digest:
        raise CorruptError(f"payload is damaged: expected {digest}, found {found}")
