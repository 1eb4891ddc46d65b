"""Defines the protocol `Storage`, and `publish`, the one way in which a file is written.

`Storage` is everything that the checkpoint store needs: twelve primitive operations on names
relative to a root, so that a wrapper can count, fail or delay each. `publish` writes a temporary
file in the same directory, fsyncs and renames it, and fsyncs the directory; where a put is atomic,
it puts the object.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Protocol, TypeVar

from speedtronic.errors import CorruptError, StorageError, StorageFullError
from speedtronic.storage.names import temporary_name

T = TypeVar("T")

FILE = "a regular file"
"""How `Storage.entries` describes a regular file, the only kind that a store reads or moves."""

MAX_RECORD_BYTES = 16 * 2**20
"""Largest JSON file that is read; ours are far smaller, so a larger one is damaged."""


class Storage(Protocol):
    """Files below a root, as a checkpoint store uses them. All names are relative to `root`.

    Every operation raises `StorageError` (`StorageFullError` if no space is left), never OSError.

    Attributes:
        root: the directory or URL, for messages.
        atomic_put: whether a file from `create` appears under its name only when `sync` returns,
            complete, replacing the former one; then no temporaries and renames are needed.
    """

    root: str
    atomic_put: bool

    def list(self, folder: str = "") -> list[str]:
        """Return the names, in any order, of the regular files directly in a folder; no links."""

    def entries(self, folder: str = "") -> dict[str, str]:
        """Return the name and kind of everything directly in a folder, without opening any of it.

        A kind is `FILE`, or words such as "a link to /disk/a.pt", "a folder", "a pipe".
        """

    def exists(self, name: str) -> bool:
        """Whether anything has this name."""

    def size(self, name: str) -> int:
        """Return the size of an existing file in bytes."""

    def open(self, name: str) -> BinaryIO:
        """Open an existing regular file for reading; a link is refused."""

    def create(self, name: str) -> BinaryIO:
        """Open a new file for writing; it must not exist, except where a put is atomic."""

    def sync(self, file: BinaryIO) -> None:
        """Make the bytes written to `file` durable, so that they survive a power failure."""

    def rename(self, old: str, new: str) -> None:
        """Rename atomically, replacing an existing `new`.

        Where a put is atomic, `old` is copied and then deleted instead.
        """

    def delete(self, name: str) -> None:
        """Delete one file; a missing one is no error."""

    def free_bytes(self) -> int | None:
        """Return the bytes that can still be written; None if that is unknown."""

    def make_folder(self, folder: str) -> None:
        """Create a folder if it is missing, and make it durable."""

    def sync_folder(self, folder: str = "") -> None:
        """Make renames and deletions in a folder durable."""


def storage_full_error(
    what: str, needed_bytes: int | None, free_bytes: int | None
) -> StorageFullError:
    """Return the error of a full disk, with a message for people and attributes for programs."""
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
    """Write the file `name` completely and durably, or not at all.

    A crash at any moment leaves the former file or the new one, and at most one temporary.

    Args:
        storage: where to write.
        name: of the file.
        write: writes the content to the file that it is given.
        fence: called immediately before `name` appears; if it raises, `name` does not change.

    Returns:
        What `write` returned.

    Raises:
        StorageError: `name` did not change, or did and may not survive a power failure. After a
            failed fsync the file is abandoned, as the kernel has marked its pages clean by then.
    """
    if storage.atomic_put:
        with _closing(storage.create(name)) as file:
            result = _written(storage, name, file, write)
            fence()
            try:
                storage.sync(file)  # without this, closing the file discards it
            except StorageError:
                fence()  # names the other process, if that is the reason
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


def publish_bytes(
    storage: Storage,
    name: str,
    content: bytes,
    *,
    fence: Callable[[], None] = lambda: None,
) -> None:
    """Write `content` as the file `name`, whole and durable, or not at all; as `publish`.

    Raises:
        StorageError: as `publish`.
    """
    publish(storage, name, lambda file: file.write(content), fence=fence)


@contextmanager
def _closing(file: BinaryIO) -> Iterator[BinaryIO]:
    try:
        yield file
    finally:
        with suppress(OSError):  # the data were flushed by sync, or have failed already
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
    """Return the content of a file.

    Raises:
        StorageError: it is missing or cannot be read.
    """
    with storage.open(name) as file:
        try:
            return file.read()
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{name}: {error.strerror}") from error


def read_record(storage: Storage, name: str) -> bytes:
    """Return the content of a small file, such as a manifest.

    Raises:
        CorruptError: it is larger than `MAX_RECORD_BYTES`, of which no more are read.
        StorageError: it is missing or cannot be read.
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
