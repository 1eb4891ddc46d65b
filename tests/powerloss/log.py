"""The log of a disk: what was written, flushed and noted, in order, and when."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR_BYTES = 512
WRITE, FLUSH, NOTE = b"w", b"f", b"n"
_HEADER = struct.Struct("<cQQd")


def pack(kind: bytes, offset: int, size_bytes: int, time_s: float) -> bytes:
    """What stands before the bytes of one entry."""
    return _HEADER.pack(kind, offset, size_bytes, time_s)


@dataclass(frozen=True)
class Write:
    """Bytes for the disk.

    Attributes:
        offset: where on the disk.
        size_bytes: how many.
        at: where in the log they stand.
    """

    offset: int
    size_bytes: int
    at: int = 0

    @property
    def num_sectors(self) -> int:
        return -(-self.size_bytes // SECTOR_BYTES)


@dataclass
class Interval:
    """What happened between two flushes.

    Attributes:
        writes: none of them is durable before the flush at the end; each may be.
        notes: (number of writes of the interval before it, text).
    """

    writes: list[Write] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)


class Log:
    """A log as `disk` has written it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def bytes_of(self, write: Write) -> memoryview:
        return memoryview(self._bytes)[write.at : write.at + write.size_bytes]

    def entries(self) -> Iterator[tuple[bytes, Write, float]]:
        """Kind, bytes and time of each."""
        at = 0
        while at < len(self._bytes):
            kind, offset, size, time_s = _HEADER.unpack_from(self._bytes, at)
            at += _HEADER.size
            yield kind, Write(offset, size, at), time_s
            at += size

    def intervals(self) -> list[Interval]:
        """From flush to flush; those without a write are one with what follows."""
        found = [Interval()]
        for kind, entry, _ in self.entries():
            if kind == WRITE:
                found[-1].writes.append(entry)
            elif kind == NOTE:
                text = bytes(self.bytes_of(entry)).decode()
                found[-1].notes.append((len(found[-1].writes), text))
            elif found[-1].writes:
                found.append(Interval())
        return found
