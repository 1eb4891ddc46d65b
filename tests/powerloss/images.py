"""Disks as power losses leave them, built one after the other along the log."""

import os
from pathlib import Path
from typing import BinaryIO

from tests.powerloss.log import SECTOR_BYTES, Interval, Log, Write
from tests.powerloss.states import CrashState


class Images:
    """Builds the image of each crash state; they must come in the order of the log.

    Args:
        base: the image before the log; not changed.
        log: of the writes since.
        folder: where two more images have room.
    """

    def __init__(self, base: Path, log: Log, folder: Path) -> None:
        self._log = log
        self._intervals: list[Interval] = log.intervals()
        self._durable, self._crashed = folder / "durable", folder / "crashed"
        self._done = 0
        copy_sparse(base, self._durable)

    def crashed(self, state: CrashState) -> Path:
        """The image of `state`, to do with as one likes until the next call."""
        with self._durable.open("r+b") as disk:
            for interval in self._intervals[self._done : state.interval]:
                for write in interval.writes:
                    self._put(disk, write)
        self._done = state.interval
        # A new file: `mount` takes up a loop device that still hangs on the old one for a moment,
        # with what the kernel has cached of it.
        self._crashed.unlink(missing_ok=True)
        copy_sparse(self._durable, self._crashed)
        writes = self._intervals[state.interval].writes
        with self._crashed.open("r+b") as disk:
            for number, sectors in state.kept:
                self._put(disk, writes[number], sectors)
        return self._crashed

    def _put(self, disk: BinaryIO, write: Write, sectors: tuple[int, ...] | None = None) -> None:
        data = self._log.bytes_of(write)
        if sectors is None:
            disk.seek(write.offset)
            disk.write(data)
            return
        for sector in sectors:
            at = sector * SECTOR_BYTES
            disk.seek(write.offset + at)
            disk.write(data[at : at + SECTOR_BYTES])


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file; its holes stay holes."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        end = 0
        while end < size:
            try:
                start = os.lseek(old.fileno(), end, os.SEEK_DATA)
            except OSError:  # no data any more
                return
            end = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            os.lseek(new.fileno(), start, os.SEEK_SET)
            at = start
            while at < end:
                at += os.sendfile(new.fileno(), old.fileno(), at, end - at)
