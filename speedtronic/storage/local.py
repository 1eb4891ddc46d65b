"""Implements `Storage` in a local directory, with fsync and rename; follows no links."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from speedtronic.errors import StorageError
from speedtronic.storage.base import FILE, storage_full_error
from speedtronic.storage.blocking_reader import reader
from speedtronic.storage.direct_file import DirectFile

_KINDS = (
    (stat.S_ISREG, FILE),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class LocalStorage:
    """`Storage` in a directory of a local file system.

    Args:
        root: the directory, which only `make_folder("")` creates.
    """

    atomic_put: bool = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = str(root)
        self._made: set[Path] = set()

    def list(self, folder: str = "") -> list[str]:
        return [name for name, kind in self.entries(folder).items() if kind == FILE]

    def entries(self, folder: str = "") -> dict[str, str]:
        with self._errors("list", folder):
            path = self._folder(folder)
            if not path.exists():
                if path.is_symlink():  # for example to a disk that is not mounted
                    raise OSError(errno.ENOENT, f"it is {_link(path)}")
                return {}
            with os.scandir(path) as entries:
                kinds = {entry.name: _kind(entry) for entry in entries}
            return {name: kind for name, kind in kinds.items() if kind}

    def exists(self, name: str) -> bool:
        with self._errors("look for", name):
            try:
                (self._root / name).lstat()
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, name: str) -> int:
        with self._errors("read", name):
            return self._path(name).lstat().st_size

    def open(self, name: str) -> BinaryIO:
        with self._errors("read", name):
            # O_NOFOLLOW: a link planted in the directory must not lead a reader outside it.
            # O_NONBLOCK: opening a pipe must not wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(self._path(name), flags)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                raise OSError(errno.EINVAL, "not a regular file")
            return reader(descriptor)

    def create(self, name: str) -> BinaryIO:
        with self._errors("create", name):
            return cast(BinaryIO, DirectFile(self._path(name)))

    def sync(self, file: BinaryIO) -> None:
        with self._errors("write", file.name):
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: str, new: str) -> None:
        with self._errors("rename", new):
            self._path(old).replace(self._path(new))

    def delete(self, name: str) -> None:
        with self._errors("delete", name):
            self._path(name).unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        return _free(self._root)

    def make_folder(self, folder: str) -> None:
        with self._errors("make", folder):
            path = self._folder(folder)
            if path in self._made and path.is_dir():
                return
            # A process that created it or a parent earlier may have died before that was durable.
            path.mkdir(parents=True, exist_ok=True)
            for parent in path.parents:
                with suppress(PermissionError):  # we may not read it, so we did not create it
                    _sync_directory(parent)
            self._made.add(path)

    def sync_folder(self, folder: str = "") -> None:
        with self._errors("sync", folder):
            _sync_directory(self._folder(folder))

    def _folder(self, folder: str) -> Path:
        """Return the path of a folder in the root; only the root itself may be a link."""
        path = self._root / folder
        if folder and path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a link, which may lead anywhere; remove it")
        return path

    def _path(self, name: str) -> Path:
        folder, _, file = name.rpartition("/")
        return self._folder(folder) / file

    @contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._root / name
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise storage_full_error(
                    f"cannot {verb} {path}", None, _free(self._root)
                ) from error
            raise StorageError(f"cannot {verb} {path}: {error.strerror or error}") from error


def _free(path: Path) -> int | None:
    with suppress(OSError):
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize
    return None


def file_kind(path: Path) -> str:
    """Return the kind of file at `path`: `FILE`, "a link to ...", "a folder"; empty if none."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    if stat.S_ISLNK(mode):
        return _link(path)
    return next((what for is_it, what in _KINDS if is_it(mode)), "no regular file")


def _kind(entry: "os.DirEntry[str]") -> str:
    """Return the kind of a directory entry; a regular file needs no further system call."""
    return FILE if entry.is_file(follow_symlinks=False) else file_kind(Path(entry.path))


def _link(path: Path) -> str:
    try:
        target = path.readlink()
    except OSError:
        return "a link"
    return f"a link to {target}" + ("" if _leads_somewhere(path) else ", which is not there")


def _leads_somewhere(link: Path) -> bool:
    try:
        return link.exists()
    except (OSError, RuntimeError):  # it points to itself
        return False


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
