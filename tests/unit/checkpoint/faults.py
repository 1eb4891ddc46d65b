"""Real files behind a storage that records each operation, and can die or fail at one of them."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from speedtronic.checkpoint.storage import LocalStorage
from speedtronic.errors import StorageError

T = TypeVar("T")
Operation = tuple[str, str]


class Crash(BaseException):
    """The process is gone: no `except Exception` and no clean-up may see it."""


class FaultyStorage:
    """`Storage` over real files.

    Args:
        root: the directory.

    Attributes:
        operations: (verb, name) of each so far; a temporary goes by the name it is meant for.
        temporaries: the real names of those created.
        free: what `free_bytes` says.
    """

    def __init__(self, root: Path) -> None:
        self._real = LocalStorage(root)
        self.root = self._real.root
        self.operations: list[Operation] = []
        self.temporaries: list[str] = []
        self._left: int | None = None
        self._after = False
        self._failing = ""
        self.free: int | None = None

    def die_at(self, number: int, *, after: bool) -> None:
        """Die before or after the effect of operation `number` from here on; what follows dies."""
        self._left, self._after = number, after

    @property
    def dead(self) -> bool:
        return self._left is not None and self._left < 0

    def fail(self, verb: str) -> None:
        """Refuse every operation called `verb`, as a disk with an error would; "" mends it."""
        self._failing = verb

    def list(self, folder: str = "") -> list[str]:
        return self._do("list", folder, lambda: self._real.list(folder))

    def exists(self, name: str) -> bool:
        return self._do("exists", name, lambda: self._real.exists(name))

    def size(self, name: str) -> int:
        return self._do("size", name, lambda: self._real.size(name))

    def open(self, name: str) -> BinaryIO:
        return self._do("open", name, lambda: self._real.open(name))

    def create(self, name: str) -> BinaryIO:
        self.temporaries.append(name)
        create = self._real.create
        return self._do("create", name, lambda: cast(BinaryIO, _File(self, create(name))))

    def sync(self, file: BinaryIO) -> None:
        self._do("sync", Path(file.name).name, lambda: self._real.sync(file))

    def rename(self, old: str, new: str) -> None:
        self._do("rename", new, lambda: self._real.rename(old, new))

    def delete(self, name: str) -> None:
        self._do("delete", name, lambda: self._real.delete(name))

    def free_bytes(self) -> int | None:
        return self.free

    def make_folder(self, folder: str) -> None:
        self._do("make_folder", folder, lambda: self._real.make_folder(folder))

    def sync_folder(self, folder: str = "") -> None:
        self._do("sync_folder", folder, lambda: self._real.sync_folder(folder))

    def write(self, file: BinaryIO, data: bytes) -> int:
        if self._failing == "write":
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._left == 0:
            file.write(data[: len(data) // 2])  # torn
            file.flush()
        return self._do("write", Path(file.name).name, lambda: file.write(data))

    def _do(self, verb: str, name: str, effect: Callable[[], T]) -> T:
        self._maybe_die(after=False)
        if verb == self._failing:
            raise StorageError(f"cannot {verb} {name}: Input/output error")
        self.operations.append((verb, _meant(name)))
        result = effect()
        self._maybe_die(after=True)
        return result

    def _maybe_die(self, *, after: bool) -> None:
        if self._left is None:
            return
        if self._left < 0 or (self._left == 0 and self._after == after):
            self._left = -1
            raise Crash
        if after:
            self._left -= 1


class _File:
    """An open file whose writes are operations too."""

    def __init__(self, storage: FaultyStorage, file: BinaryIO) -> None:
        self._storage = storage
        self._file = file

    def write(self, data: Any) -> int:
        return self._storage.write(self._file, bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _meant(name: str) -> str:
    """`.latest.json.tmp-0123456789abcdef` is meant for `latest.json`."""
    return name.removeprefix(".").split(".tmp-")[0]
