"""Tests whether a file system gives the guarantees that the checkpoint store relies on."""

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from speedtronic.machine_errors import is_transient
from speedtronic.storage.names import LOCK, temporary_name

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|lustre|ceph|glusterfs|gpfs|beegfs|afs|ocfs2|gfs2|fuse(\..+)?"
)


def missing_guarantees(root: Path) -> list[str]:
    """Return a warning for each guarantee that the file system of `root` does not give.

    The caller holds the lock of `root`. Takes a few file operations, and leaves no file.
    """
    warnings = []
    kind = file_system(root, _mounts())
    if _NETWORK.fullmatch(kind):
        warnings.append(
            f"{root} is on a network file system ({kind}): that a second machine is kept out, and "
            "that a save survives a power failure, is only as sure as its server makes flock, "
            "rename and fsync; see docs/storage.md"
        )
    if not _excludes(root / LOCK):
        warnings.append(
            f"{root}: its file system keeps no locks (flock), so nothing keeps a second process "
            "out; let only one train there; see docs/storage.md"
        )
    if problem := _renaming_problem(root):
        warnings.append(
            f"{root}: renaming does not replace a file here ({problem}), so a crash may leave a "
            "save half done; keep checkpoints elsewhere; see docs/storage.md"
        )
    return warnings


def file_system(path: Path, mounts: Iterable[str]) -> str:
    """Return the type of the file system that holds `path`, such as `ext4` or `nfs4`.

    Args:
        path: of a file or directory.
        mounts: the lines of Linux's /proc/self/mountinfo; empty elsewhere, and so is the type.
    """
    path = path.resolve()
    kind, longest = "", -1
    for line in mounts:
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split()[4]))
        # Of two mounts on one point the later one hides the earlier.
        if path.is_relative_to(point) and len(point.parts) >= longest:
            kind, longest = after.split()[0], len(point.parts)
    return kind


def _mounts() -> list[str]:
    with suppress(OSError):
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return []


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), point)


def _excludes(lock: Path) -> bool:
    """Whether a held flock cannot be acquired through a second open file."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True  # proves nothing
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    else:
        return False
    finally:
        os.close(descriptor)


def _renaming_problem(root: Path) -> str:
    """Return why renaming does not replace a file; empty if it does."""
    old, new = (root / temporary_name("probe") for _ in range(2))
    try:
        old.write_bytes(b"old")
        new.write_bytes(b"new")
        new.replace(old)
        found, left = old.read_bytes(), new.exists()
    except OSError as error:
        if is_transient(error):  # proves nothing
            return ""
        return error.strerror or str(error)
    finally:
        for file in (old, new):
            with suppress(OSError):
                file.unlink()
    return "" if found == b"new" and not left else "the old content is still there"
