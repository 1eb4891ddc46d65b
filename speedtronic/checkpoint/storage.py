"""Durable bytes under one directory; the only module that knows fsspec.

`Storage` is the whole surface that the store needs: eleven primitive operations on names relative
to the root, so that a wrapper can count, fail or delay each. `publish` composes them into the one
way a file comes into being: a temporary in the same directory, fsync, rename, directory fsync.
fsspec's own local transactions do neither the first nor the fsyncs, so they are not used.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from speedtronic.checkpoint import layout
from speedtronic.errors import ConfigError, StorageError, StorageFullError

T = TypeVar("T")


class Storage(Protocol):
    """What a checkpoint store asks of a place to keep files. All names are relative to `root`.

    Every operation raises `StorageError` (`StorageFullError` when no space is left), never OSError.
    """

    root: str

    def list(self, folder: str = "") -> list[str]:
        """The names, in any order, of the regular files directly in a folder; no links."""

    def exists(self, name: str) -> bool:
        """Whether anything is called `name`."""

    def size(self, name: str) -> int:
        """Bytes in an existing file."""

    def open(self, name: str) -> BinaryIO:
        """An existing regular file for reading; a link is refused."""

    def create(self, name: str) -> BinaryIO:
        """A new file for writing; it must not exist."""

    def sync(self, file: BinaryIO) -> None:
        """Return once the bytes written to `file` would survive a power failure."""

    def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`, replacing what was there."""

    def delete(self, name: str) -> None:
        """Remove one file; one that is not there is no error."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None where that cannot be known."""

    def make_folder(self, folder: str) -> None:
        """Make sure a folder is there and would survive a power failure."""

    def sync_folder(self, folder: str = "") -> None:
        """Return once renames and deletions in a folder would survive a power failure."""


class LocalStorage:
    """`Storage` in a directory of a local file system.

    Args:
        root: the directory; made by `make_folder("")`, not before.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = str(root)

    def list(self, folder: str = "") -> list[str]:
        path = self._root / folder
        with self._errors("list", folder):
            if not path.exists():
                return []
            with os.scandir(path) as entries:
                return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._root / name)

    def size(self, name: str) -> int:
        with self._errors("read", name):
            return (self._root / name).lstat().st_size

    def open(self, name: str) -> BinaryIO:
        with self._errors("read", name):
            # O_NOFOLLOW: a link planted in the directory must not lead a reader outside it.
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._root / name, flags)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EINVAL, "not a regular file")
            return os.fdopen(descriptor, "rb")

    def create(self, name: str) -> BinaryIO:
        with self._errors("create", name):
            return cast(BinaryIO, (self._root / name).open("xb"))

    def sync(self, file: BinaryIO) -> None:
        with self._errors("write", file.name):
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: str, new: str) -> None:
        with self._errors("rename", new):
            (self._root / old).replace(self._root / new)

    def delete(self, name: str) -> None:
        with self._errors("delete", name):
            (self._root / name).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        return _free(self._root)

    def make_folder(self, folder: str) -> None:
        path = self._root / folder
        with self._errors("make", folder):
            if path.is_dir():
                return
            path.mkdir(parents=True, exist_ok=True)
            _sync_directory(path.parent)

    def sync_folder(self, folder: str = "") -> None:
        with self._errors("sync", folder):
            _sync_directory(self._root / folder)

    @contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._root / name
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise full_error(f"cannot {verb} {path}", None, _free(self._root)) from error
            raise StorageError(f"cannot {verb} {path}: {error.strerror or error}") from error


def full_error(what: str, needed_bytes: int | None, free_bytes: int | None) -> StorageFullError:
    """The error of a full disk, in words for a person and as attributes."""
    needs = "" if needed_bytes is None else f", needs {needed_bytes / 2**20:.1f} MiB"
    found = "" if free_bytes is None else f", found {free_bytes / 2**20:.1f} MiB"
    error = StorageFullError(
        f"no space left: {what}{needs}{found}; make room and run the same command again: what was "
        "saved before is whole"
    )
    error.needed_bytes, error.free_bytes = needed_bytes, free_bytes
    return error


def _free(path: Path) -> int | None:
    with suppress(OSError):
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize
    return None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def local_path(url: str) -> Path:
    """The absolute path behind a path or `file://` URL; nothing is created or looked at.

    Raises:
        ConfigError: the URL is not of a local file.
    """
    try:
        filesystem, path = url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{url!r} cannot be opened: {error}") from error
    if not isinstance(filesystem, LocalFileSystem):
        raise ConfigError(f"{url!r} is not local; expected a path or a file:// URL")
    return Path(path)


def open_storage(url: str) -> LocalStorage:
    """The storage behind a path or `file://` URL; nothing is created.

    Raises:
        ConfigError: the URL is not of a local directory.
    """
    return LocalStorage(local_path(url))


def publish(storage: Storage, name: str, write: Callable[[BinaryIO], T]) -> T:
    """Bring `name` into being with what `write` writes, whole and durable, or not at all.

    A crash at any moment leaves the former `name` or the new one, and at most one temporary.

    Returns:
        What `write` returned.

    Raises:
        StorageError: nothing under `name` changed, or only its durability is unknown. After a
            failed fsync the file is abandoned: the kernel has marked its pages clean by then.
    """
    temporary = layout.temporary_name(name)
    try:
        file = storage.create(temporary)
        try:
            result = _written(storage, name, file, write)
            storage.sync(file)
        finally:
            with suppress(OSError):  # what matters was flushed by sync, or has failed already
                file.close()
        storage.rename(temporary, name)
    except BaseException:
        with suppress(StorageError):
            storage.delete(temporary)
        raise
    storage.sync_folder()
    return result


def _written(storage: Storage, name: str, file: BinaryIO, write: Callable[[BinaryIO], T]) -> T:
    try:
        return write(file)
    except (OSError, RuntimeError) as error:
        # torch.save wraps the OSError of a file object in a RuntimeError.
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        what = f"cannot write {storage.root}/{name}"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            raise full_error(what, None, storage.free_bytes()) from error
        raise StorageError(f"{what}: {error}") from error


def read_bytes(storage: Storage, name: str) -> bytes:
    """The whole of one file.

    Raises:
        StorageError: it is not there or cannot be read.
    """
    with storage.open(name) as file:
        try:
            return file.read()
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{name}: {error.strerror}") from error
