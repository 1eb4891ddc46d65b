"""A disk in memory that forgets at a power loss what nobody asked it to keep.

The rules, which are those of POSIX and no kinder than any common file system (Pillai et al., "All
File Systems Are Not Created Equal", OSDI 2014):

- A file's bytes are certain once `sync(file)` returned. Before that a power loss leaves all of
  them, none (the file has the length of its last sync), a prefix of whole blocks, or the whole
  length with any of its blocks zero.
- A sync that failed has marked the file's pages clean: a later one of the same file reports
  success and makes nothing certain.
- A creation, a rename or a deletion is certain once its folder, for a rename that of the new name,
  was synced after it. Before that each one may have happened or not, whatever became of those
  around it. One rename happens whole or not at all, across folders too. A name that persists leads
  to its file, whatever became of the name under which the file was created.
- Syncing a file makes no name certain, and syncing a folder no file's bytes.
- A process that is killed loses nothing that it had handed to the system.
"""

import io
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from speedtronic.errors import StorageError
from speedtronic.storage.base import FILE
from tests.robustness.failpoints import AT, Failpoints

BLOCK = 512  # bytes; small, so that a tiny payload has several


class _File:
    """What a name leads to."""

    def __init__(self, content: bytes = b"", certain: bytes = b"") -> None:
        self.content = bytearray(content)
        self.certain = certain
        self.abandoned = False  # a sync of it failed

    @property
    def volatile(self) -> bool:
        return self.content != self.certain


class _Handle(io.RawIOBase):
    """A file open for writing."""

    def __init__(self, name: str, file: _File) -> None:
        super().__init__()
        self.name = name
        self.file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        written = bytes(data)  # type: ignore[call-overload]
        self.file.content += written
        return len(written)


@dataclass
class _Change:
    """What one operation did to names: each leads to a file from then on, or to nothing."""

    names: dict[str, _File | None]
    folder: str


class Disk:
    """`Storage` in memory; `power_losses` gives the disks that the next start may find.

    Attributes:
        faults: that can happen at an operation.
        free: what `free_bytes` says.
    """

    root, atomic_put = "memory:/run", False
    faults = tuple(AT)

    def __init__(self) -> None:
        self.free: int | None = None
        self._certain: dict[str, _File] = {}
        self._changes: list[_Change] = []
        self._names: dict[str, _File] = {}

    # --- Storage ---

    def list(self, folder: str = "") -> list[str]:
        return [name.rpartition("/")[2] for name in self._names if _folder(name) == folder]

    def entries(self, folder: str = "") -> dict[str, str]:
        return dict.fromkeys(self.list(folder), FILE)

    def exists(self, name: str) -> bool:
        return name in self._names or any(_folder(other) == name for other in self._names)

    def size(self, name: str) -> int:
        return len(self._file(name).content)

    def open(self, name: str) -> BinaryIO:
        return io.BytesIO(bytes(self._file(name).content))

    def create(self, name: str) -> BinaryIO:
        if name in self._names:
            raise StorageError(f"cannot create {name}: File exists")
        file = _File()
        self._change({name: file}, name)
        return cast(BinaryIO, _Handle(name, file))

    def sync(self, file: BinaryIO) -> None:
        synced = cast(_Handle, file).file
        if not synced.abandoned:
            synced.certain = bytes(synced.content)

    def rename(self, old: str, new: str) -> None:
        self._change({old: None, new: self._file(old)}, new)

    def delete(self, name: str) -> None:
        if name in self._names:
            self._change({name: None}, name)

    def free_bytes(self) -> int | None:
        return self.free

    def make_folder(self, folder: str) -> None:
        """Folders need no making here: one that a name lies in is there."""

    def sync_folder(self, folder: str = "") -> None:
        pending: list[_Change] = []
        for change in self._changes:
            if change.folder != folder:
                pending.append(change)
                continue
            _apply(self._certain, change.names)
            for earlier in pending:  # what comes later decides what the name leads to
                rest = {n: f for n, f in earlier.names.items() if n not in change.names}
                earlier.names = rest
        self._changes = pending

    # --- faults ---

    def failpoints(self) -> Failpoints:
        """The way to this disk on which an operation can go wrong."""
        return Failpoints(self)

    def sync_failed(self, file: BinaryIO) -> None:
        """What a sync does that reports an error."""
        cast(_Handle, file).file.abandoned = True

    def damage(self, name: str, content: bytes) -> None:
        """Make `name` hold `content` for certain, as a disk that rots does."""
        file = self._file(name)
        file.content, file.certain = bytearray(content), content

    def content(self, name: str) -> bytes:
        return bytes(self._file(name).content)

    def image(self) -> dict[str, bytes]:
        """Every name with its bytes."""
        return {name: bytes(file.content) for name, file in sorted(self._names.items())}

    @classmethod
    def of(cls, image: dict[str, bytes]) -> "Disk":
        """A disk on which all of that is certain."""
        disk = cls()
        disk._certain = {name: _File(content, content) for name, content in image.items()}
        disk._names = dict(disk._certain)
        return disk

    def killed(self) -> "Disk":
        """The disk that the next process finds when this one was killed and the power stayed."""
        return self.of(self.image())

    def power_losses(
        self, bound: int, rng: random.Random
    ) -> Iterator[tuple[frozenset[str], "Disk"]]:
        """What the next start may find: every combination if these are at most `bound`, else
        `bound` random ones; each with the kinds of loss in it.
        """
        files = [file for file in self._reachable() if file.volatile]
        fates: list[list[tuple[str, object]]] = [
            *([("name kept", change), ("name dropped", None)] for change in self._changes),
            *(_fates(file) for file in files),
        ]
        choices: Iterator[tuple[tuple[str, object], ...]]
        if math.prod(len(fate) for fate in fates) <= bound:
            choices = itertools.product(*fates)
        else:
            choices = (tuple(_choice(rng, fate) for fate in fates) for _ in range(bound))
        num_changes = len(self._changes)
        for choice in choices:
            names = dict(self._certain)
            for _, change in choice[:num_changes]:
                if change is not None:
                    _apply(names, cast(_Change, change).names)
            content = dict(zip(files, (c for _, c in choice[num_changes:]), strict=True))
            image = {name: cast(bytes, content.get(f, f.certain)) for name, f in names.items()}
            yield frozenset(kind for kind, _ in choice), self.of(image)

    def _reachable(self) -> Iterable[_File]:
        later = (file for change in self._changes for file in change.names.values() if file)
        return dict.fromkeys([*self._certain.values(), *later])

    def _file(self, name: str) -> _File:
        if name not in self._names:
            raise StorageError(f"cannot read {name}: No such file or directory")
        return self._names[name]

    def _change(self, names: dict[str, _File | None], decisive: str) -> None:
        self._changes.append(_Change(names, _folder(decisive)))
        _apply(self._names, names)


def _apply(names: dict[str, _File], changes: dict[str, _File | None]) -> None:
    for name, file in changes.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _fates(file: _File) -> list[tuple[str, object]]:
    """What a power loss can make of bytes that were not synced."""
    content, length = bytes(file.content), len(file.content)
    starts = range(0, length, BLOCK)
    zeroed = [
        content[:start] + bytes(min(BLOCK, length - start)) + content[start + BLOCK :]
        for start in starts
    ]
    return [
        ("bytes kept", content),
        ("bytes dropped", file.certain),
        *(("bytes torn", content[:start]) for start in starts[1:]),
        *(("bytes zeroed", image) for image in [bytes(length), *zeroed]),
    ]


def _choice(rng: random.Random, fates: list[tuple[str, object]]) -> tuple[str, object]:
    """The kinds alike often, however many ways each has."""
    kind = rng.choice(sorted({kind for kind, _ in fates}))
    return rng.choice([fate for fate in fates if fate[0] == kind])


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
