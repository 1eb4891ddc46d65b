"""What a checkpoint store asks of a place to keep files, and how a file comes into being there.

`Storage` is the whole surface that the store needs: twelve primitive operations on names relative
to the root, so that a wrapper can count, fail or delay each. `publish` composes them into the one
way a file comes into being: a temporary in the same directory, fsync, rename, directory fsync; or,
where a put is atomic, the put.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Protocol, TypeVar

from speedtronic.errors import CorruptError, StorageError, StorageFullError
from speedtronic.storage.names import temporary_name

T = TypeVar("T")

FILE = "a regular file"
"""What `Storage.entries` calls everything that a store reads, moves and deletes."""

MAX_RECORD_BYTES = 16 * 2**20
"""No JSON file of ours comes near this; what is larger is damaged, and not read to its end."""


class Storage(Protocol):
    """What a checkpoint store asks of a place to keep files. All names are relative to `root`.

    Every operation raises `StorageError` (`StorageFullError` when no space is left), never OSError.

    Attributes:
        root: the directory or URL, for messages.
        atomic_put: whether what `create` gives is under its name only once `sync` returns, whole
            and in place of what was there; then there are no temporaries and no renames.
    """

    root: str
    atomic_put: bool

    def list(self, folder: str = "") -> list[str]:
        """The names, in any order, of the regular files directly in a folder; no links."""

    def entries(self, folder: str = "") -> dict[str, str]:
        """Everything directly in a folder, each name with what it is in words: `FILE`, or such as
        "a link to /disk/a.pt", "a folder", "a pipe". Nothing is opened."""

    def exists(self, name: str) -> bool:
        """Whether anything is called `name`."""

    def size(self, name: str) -> int:
        """Bytes in an existing file."""

    def open(self, name: str) -> BinaryIO:
        """An existing regular file for reading; a link is refused."""

    def create(self, name: str) -> BinaryIO:
        """A new file for writing; it must not exist, except where a put is atomic."""

    def sync(self, file: BinaryIO) -> None:
        """Return once the bytes written to `file` would survive a power failure."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing what was there; where a put is atomic,
        a copy and then a deletion."""

    def delete(self, name: str) -> None:
        """Remove one file; one that is not there is no error."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None where that cannot be known."""

    def make_folder(self, folder: str) -> None:
        """Make sure a folder is there and would survive a power failure."""

    def sync_folder(self, folder: str = "") -> None:
        """Return once renames and deletions in a folder would survive a power failure."""


def storage_full_error(
    what: str, needed_bytes: int | None, free_bytes: int | None
) -> StorageFullError:
    """The error of a full disk, in words for a person and as attributes."""
    needs = "" if needed_bytes is None else f", needs {needed_bytes / 2**20:.1f} MiB"
    found = "" if free_bytes is None else f", found {free_bytes / 2**20:.1f} MiB"
    error = StorageFullError(
        f"no space left: {what}{needs}{found}; make room and run the same command again: what was "
        "saved before is whole"
    )
    error.needed_bytes, error.free_bytes = needed_bytes, free_bytes
    return error


def publish(
    storage: Storage,
    name: str,
    write: Callable[[BinaryIO], T],
    *,
    fence: Callable[[], None] = lambda: None,
) -> T:
    """Bring `name` into being with what `write` writes, whole and durable, or not at all.

    A crash at any moment leaves the former `name` or the new one, and at most one temporary.

    Args:
        fence: called last of all before `name` appears; if it raises, nothing does.

    Returns:
        What `write` returned.

    Raises:
        StorageError: nothing under `name` changed, or only its durability is unknown. After a
            failed fsync the file is abandoned: the kernel has marked its pages clean by then.
    """
    if storage.atomic_put:
        with _closing(storage.create(name)) as file:
            result = _written(storage, name, file, write)
            fence()
            try:
                storage.sync(file)  # closed before this, there is nothing
            except StorageError:
                fence()  # says who was faster, if that is why
                raise
        return result
    temporary = temporary_name(name)
    try:
        with _closing(storage.create(temporary)) as file:
            result = _written(storage, name, file, write)
            storage.sync(file)
        fence()
        try:
            storage.rename(temporary, name)
        except StorageError:
            fence()  # says who has the lock now, if that one has removed the temporary
            raise
    except BaseException:
        with suppress(StorageError):
            storage.delete(temporary)
        raise
    storage.sync_folder()
    return result


@contextmanager
def _closing(file: BinaryIO) -> Iterator[BinaryIO]:
    try:
        yield file
    finally:
        with suppress(OSError):  # what matters was flushed by sync, or has failed already
            file.close()


def _written(storage: Storage, name: str, file: BinaryIO, write: Callable[[BinaryIO], T]) -> T:
    try:
        return write(file)
    except (OSError, RuntimeError) as error:
        # torch.save wraps the OSError of a file object in a RuntimeError.
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        what = f"cannot write {storage.root}/{name}"
        if isinstance(cause, StorageError):
            raise cause from error
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full_error(what, None, storage.free_bytes()) from error
        raise StorageError(f"{what}: {error}") from error


def read_bytes(storage: Storage, name: str) -> bytes:
    """The whole of one file.

    Raises:
        StorageError: it is not there or cannot be read.
    """
    with storage.open(name) as file:
        try:
            return file.read()
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{name}: {error.strerror}") from error


def read_record(storage: Storage, name: str) -> bytes:
    """The whole of a small file, such as a manifest; at most `MAX_RECORD_BYTES` are read.

    Raises:
        CorruptError: it is larger.
        StorageError: it is not there or cannot be read.
    """
    with storage.open(name) as file:
        try:
            content = file.read(MAX_RECORD_BYTES + 1)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{name}: {error.strerror}") from error
    if len(content) > MAX_RECORD_BYTES:
        size = storage.size(name)
        raise CorruptError(
            f"{name} has {size} bytes, expected at most {MAX_RECORD_BYTES}: it is no record of ours"
        )
    return content
