"""Keeps one writer per run in a local directory, by a lock that ends with its process.

The lock is an flock on `.lock`, so a dead process never blocks. The file names the holder, for the
message to a process that is refused. It also shows a process that was stopped for long whether it
still holds the lock: an operator may have removed the file, or the file system may keep no locks.
"""

import contextlib
import errno
import logging
import os
import stat
from pathlib import Path

from filelock import FileLock, Timeout

from speedtronic.errors import OutputDirError, RunLockedError
from speedtronic.machine_errors import is_transient
from speedtronic.storage.base import FILE, Storage
from speedtronic.storage.blocking_reader import reader
from speedtronic.storage.lease import Lease
from speedtronic.storage.local import file_kind
from speedtronic.storage.lock_record import (
    Record,
    describe_owner,
    from_bytes,
    lock_lost_error,
    new_record,
    to_bytes,
)
from speedtronic.storage.names import LOCK
from speedtronic.storage.objects import ObjectStorage
from speedtronic.storage.probe import missing_guarantees
from speedtronic.storage.regular_files import disk_errors, storage_error

logger = logging.getLogger(__name__)

ATTEMPTS = 3  # at unlocking
MAX_BYTES = 2**16  # read of a lock file; a record is far smaller


class RunLock:
    """The lock of one process on a directory, from `acquire` to `release` or its death.

    Forked children (loader workers) do not hold it: filelock closes its descriptor in them.

    Args:
        root: the directory of checkpoints, or a run's output directory.
        warn: whether `acquire` warns of guarantees that the file system does not give.
    """

    def __init__(self, root: str, *, warn: bool = True) -> None:
        self._warn = warn
        self._root = Path(root)
        self._path = self._root / LOCK
        self._lock = FileLock(self._path, thread_local=False)
        self._record: Record = {}
        self._file = (0, 0)

    def acquire(self) -> None:
        """Acquire the lock, or fail at once.

        Raises:
            RunLockedError: another process holds it; the message names host and pid.
            OutputDirError: it cannot be acquired in this directory.
            StorageError: it cannot be acquired now; it is free, and another try may succeed.
        """
        with disk_errors(f"cannot lock {self._path}"):
            kind = file_kind(self._path)
            if kind not in ("", FILE):
                raise OutputDirError(f"cannot lock {self._path}: it is {kind}; remove it")
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                owner = describe_owner(read_lock_record(self._root))
                raise RunLockedError(
                    f"{self._root} is being trained by {owner}; wait for it to end, or stop it"
                ) from None
            self._record = new_record()
            try:
                self._file = _write(self._path, to_bytes(self._record))
            except BaseException:
                self.release()
                raise
        for warning in missing_guarantees(self._root) if self._warn else ():
            logger.warning("%s", warning)

    def confirm(self) -> None:
        """Check that this process still holds the lock.

        Raises:
            RunLockedError: the file was replaced or removed; names the present holder.
            StorageError: it cannot be read now.
        """
        try:
            content, file = _read(self._path)
        except OSError as error:
            if is_transient(error):
                raise storage_error(f"cannot read {self._path}", error) from error
            content, file = b"", (0, 0)
        record = from_bytes(content)
        if file != self._file or record.get("token") != self._record["token"]:
            raise lock_lost_error(str(self._root), record)

    def is_of(self, other: "RunLock") -> bool:
        """Whether both locks are of the same directory."""
        return self._root.resolve() == other._root.resolve()

    def release(self) -> None:
        """Release the lock; the file stays.

        Raises:
            StorageError: it cannot be released before this process ends.
        """
        for attempt in range(ATTEMPTS):
            try:
                self._lock.release()
                break
            except OSError as error:  # the lock is held still
                if attempt == ATTEMPTS - 1:
                    raise storage_error(f"cannot unlock {self._path}", error) from error


def open_lock(storage: Storage) -> RunLock | Lease:
    """Return the kind of lock that fits a storage; it is not acquired yet."""
    return Lease(storage) if isinstance(storage, ObjectStorage) else RunLock(storage.root)


def read_lock_record(root: str | Path) -> Record:
    """Return the record of the last holder of a directory's lock; empty if unknown."""
    with contextlib.suppress(OSError):
        return from_bytes(_read(Path(root) / LOCK)[0])
    return {}


def _write(path: Path, content: bytes) -> tuple[int, int]:
    """Overwrite a file that is no link; return its device and inode."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        return _identity(descriptor)


def _read(path: Path) -> tuple[bytes, tuple[int, int]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with reader(descriptor) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MAX_BYTES), _identity(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    """Return device and inode, which no other file can have while this one is open."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
