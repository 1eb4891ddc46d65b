"""Making, mounting and mending the file systems that are put to the test."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

TOOLS = {
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
}


@dataclass(frozen=True)
class FileSystem:
    """A kind of file system.

    Attributes:
        name: for people.
        type: for mount.
        make: the command that makes it, less the image.
        size_mib: of the image; holes take no memory.
        options: for mount.
        journal: whether a mount mends what a power loss left; else `check` is run before each.
        check: the command that mends it otherwise, as a boot would run it; for one with a journal
            only when a mount is refused.
        whole_at: offsets of what must be written whole, as the file system takes for granted.
    """

    name: str
    type: str
    make: tuple[str, ...]
    size_mib: int
    options: str = "loop"
    journal: bool = True
    check: tuple[str, ...] = ()
    whole_at: tuple[int, ...] = ()


_EXT4 = ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard")
_E2FSCK = ("e2fsck", "-fy")
FILE_SYSTEMS = (
    FileSystem("ext4 ordered", "ext4", _EXT4, 256, "loop,data=ordered,commit=1", check=_E2FSCK),
    FileSystem("ext4 writeback", "ext4", _EXT4, 256, "loop,data=writeback,commit=1", check=_E2FSCK),
    FileSystem(
        "ext4 without journal",
        "ext4",
        (*_EXT4, "-O", "^has_journal"),
        256,
        journal=False,
        check=_E2FSCK,
    ),
    FileSystem("xfs", "xfs", ("mkfs.xfs", "-q", "-f", "-K"), 320),
    FileSystem(
        "btrfs",
        "btrfs",
        ("mkfs.btrfs", "-q", "-f", "-K"),
        256,
        "loop,commit=1",
        whole_at=(64 * 2**10, 64 * 2**20),  # its superblock of 4 KiB, and the copy of that
    ),
)


class DamagedDisk(Exception):
    """A file system that cannot be mounted any more."""


def missing() -> list[str]:
    """What has to be installed, as commands with the Debian packages they come with."""
    found = [f"{tool} ({package})" for tool, package in TOOLS.items() if not shutil.which(tool)]
    return found if find_library("fuse3") else [*found, "libfuse3 (fuse3)"]


def make(kind: FileSystem, image: Path) -> None:
    """Make an empty file system in a new file."""
    with image.open("wb") as file:
        file.truncate(kind.size_mib * 2**20)
    _run(*kind.make, str(image))
    _run("fallocate", "--dig-holes", str(image))


@contextmanager
def mounted(kind: FileSystem, image: Path, place: Path, *, crashed: bool) -> Iterator[bool]:
    """Mount an image; its journal is replayed. Yields whether it had to be mended first, though it
    has a journal: a superblock that was torn is refused.

    Raises:
        DamagedDisk: it cannot be mounted.
    """
    mended = False
    try:
        if crashed and not kind.journal:
            _check(kind, image)
        try:
            _mount(kind, image, place)
        except subprocess.CalledProcessError:
            if not (crashed and kind.journal and kind.check):
                raise
            mended = True
            _check(kind, image)
            _mount(kind, image, place)
    except subprocess.CalledProcessError as error:
        said = " ".join(f"{error.stdout or ''} {error.stderr or ''}".split())
        raise DamagedDisk(f"cannot be mounted: {said}") from error
    try:
        yield mended
    finally:
        _run("umount", str(place))


def _check(kind: FileSystem, image: Path) -> None:
    _run(*kind.check, str(image), expected=(0, 1))  # 1: mended


def _mount(kind: FileSystem, image: Path, place: Path) -> None:
    _run("mount", "-t", kind.type, "-o", kind.options, str(image), str(place))


def _run(*command: str, expected: tuple[int, ...] = (0,)) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in expected:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
