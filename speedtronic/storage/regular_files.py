"""Reads and writes a run's own files: regular files only, read up to a bound, replaced whole.

config.yaml, run.json, report.json, report.md, loss.png, the metrics and the log lie in a directory
where others may write too. A link there is never followed, so that no other file is overwritten,
and a pipe or a socket makes nobody wait.
"""

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from speedtronic.errors import (
    CorruptError,
    OutputDirError,
    SpeedtronicError,
    StorageError,
    StorageFullError,
)
from speedtronic.machine_errors import is_transient
from speedtronic.storage.blocking_reader import reader

LIMIT_BYTES = 64 * 2**20  # a report of some hundred thousand chunks

_KINDS = {
    stat.S_IFLNK: "a link, which may lead anywhere",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def other_kind(path: Path) -> str:
    """Return what is at `path`, such as `a pipe`; empty for a regular file or nothing."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def refuse_other_kinds(path: Path) -> None:
    """Return if `path` is a regular file or nothing.

    Raises:
        OutputDirError: it is a link, a pipe or the like.
    """
    if kind := other_kind(path):
        raise OutputDirError(
            f"cannot write {path}: it is {kind}; a run writes to regular files only: move it away"
        )


def storage_error(what: str, error: OSError) -> StorageError:
    """Convert an OSError; `what` says what failed, such as `cannot write runs/a/b`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(
            f"no space left: {what}; make room and run the same command again: what was saved "
            "before is whole"
        )
    return StorageError(f"{what}: {error.strerror or error}")


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Convert an OSError: to StorageError if another try may succeed, else to OutputDirError."""
    try:
        yield
    except SpeedtronicError:
        raise
    except OSError as error:
        if is_transient(error):
            raise storage_error(what, error) from error
        raise OutputDirError(f"{what}: {error.strerror or error}") from error


def open_to_read(path: Path) -> BinaryIO:
    """Open a run's own file.

    Raises:
        FileNotFoundError: nothing is there.
        CorruptError: it is a link, a pipe or the like.
        StorageError, OutputDirError: it cannot be read.
    """
    try:
        return reader(_open(path, os.O_RDONLY))
    except FileNotFoundError:
        raise
    except OSError as error:
        if kind := other_kind(path):
            raise CorruptError(f"{path} is {kind}; expected a regular file") from None
        with disk_errors(f"cannot read {path}"):
            raise error


def read_bytes(path: Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Read a run's own file; raises as `open_to_read`, and CorruptError where it is larger."""
    with open_to_read(path) as file, disk_errors(f"cannot read {path}"):
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise CorruptError(f"{path} is damaged: it is larger than {limit_bytes / 2**20:.0f} MiB")
    return data


def read_text(path: Path, limit_bytes: int = LIMIT_BYTES) -> str:
    """Read a run's own text file.

    Raises:
        CorruptError: it holds nothing, or no UTF-8 text; and as `read_bytes`.
    """
    data = read_bytes(path, limit_bytes)
    if not data.strip(b"\0 \t\r\n"):
        holds = "holds zeros only" if b"\0" in data else "is empty"
        raise CorruptError(f"{path} is damaged: it {holds}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptError(f"{path} is damaged: byte {error.start} is not UTF-8 text") from None


def read_json(path: Path, limit_bytes: int = LIMIT_BYTES) -> dict[str, Any]:
    """Read a run's own JSON file.

    Raises:
        CorruptError: it holds no JSON object; and as `read_text`.
    """
    text = read_text(path, limit_bytes)
    try:
        record = json.loads(text)
    except RecursionError:
        raise CorruptError(f"{path} is damaged: it is nested too deeply") from None
    except ValueError as error:
        raise CorruptError(f"{path} is damaged: it is not JSON: {error}") from None
    if not isinstance(record, dict):
        raise CorruptError(f"{path} is damaged: it holds no JSON object")
    return record


def replace(path: Path, parts: Iterable[bytes]) -> None:
    """Replace a run's own file, or make it. Durable on return.

    A crash leaves it as it was or as it is now, and at most a temporary beside it, which the next
    call removes. Only one process may write a file at a time.

    Raises:
        OutputDirError: it cannot be written, or it is a link, a pipe or the like.
        StorageError: the disk or the machine refused; safe to call again.
    """
    refuse_other_kinds(path)
    temporary = path.with_name(f".{path.name}.new-{secrets.token_hex(8)}")
    with disk_errors(f"cannot write {path}"):
        _remove_leftovers(path)
        try:
            with os.fdopen(_open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)  # a link that came meanwhile is replaced, not followed
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a run's own text file; see `replace`."""
    replace(path, [text.encode()])


def open_to_append(path: Path) -> int:
    """Open a run's own file for lines to come, made if need be; returns a file descriptor.

    Raises:
        OutputDirError: it cannot be written, or it is a link, a pipe or the like.
        StorageError: the disk or the machine refused.
    """
    with disk_errors(f"cannot write {path}"):
        refuse_other_kinds(path)
        descriptor = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            sync_directory(path.parent)  # who made it before may have died before it was durable
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def make_directory(path: Path) -> None:
    """Make a directory and those above it, durable on return.

    Raises:
        OutputDirError, StorageError: it cannot be made.
    """
    with disk_errors(f"cannot make the directory {path}"):
        path.mkdir(parents=True, exist_ok=True)
        for parent in path.parents:
            with suppress(PermissionError):  # not ours to read, so not ours to have made
                sync_directory(parent)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory would survive a power failure; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path, flags: int) -> int:
    """Open a regular file without following a link or waiting for the other end of a pipe."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)  # less what the umask takes away
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_leftovers(path: Path) -> None:
    """Remove the temporaries of writers of `path` that died, an older version's `.tmp` too."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.(tmp|new-[0-9a-f]{{16}})")
    with os.scandir(path.parent) as entries:
        found = [entry for entry in entries if ours.fullmatch(entry.name)]
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)
