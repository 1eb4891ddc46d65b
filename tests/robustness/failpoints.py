"""A storage that numbers every operation, and lets one of them go wrong."""

import errno
import os
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

from speedtronic.errors import StorageError
from speedtronic.storage.base import Storage, storage_full_error

T = TypeVar("T")
Operation = tuple[str, str]

KILLED_BEFORE, KILLED_AFTER = "killed before", "killed after"
SHORT_KILLED, SHORT_ENOSPC = "short write, killed", "short write, ENOSPC"

# Each fault with the operations at which it can happen.
READS = frozenset({"list", "exists", "size", "open", "read"})
CHANGES = frozenset(
    {"create", "write", "sync", "rename", "delete", "make_folder", "sync_folder"},
)
VERBS = READS | CHANGES
AT: dict[str, frozenset[str]] = {
    KILLED_BEFORE: VERBS,
    KILLED_AFTER: VERBS,
    "EIO": VERBS,
    "ENOSPC": CHANGES - {"delete"},
    "EACCES": VERBS - {"read", "write", "sync"},
    "EMFILE": frozenset({"list", "open", "create"}),
    SHORT_KILLED: frozenset({"write"}),
    SHORT_ENOSPC: frozenset({"write"}),
}


class Killed(BaseException):
    """The process is gone: no `except Exception` and no clean-up may see it."""


class Failpoints:
    """`Storage` over another one.

    Args:
        storage: what does the work.
        observe: called before every operation.

    Attributes:
        operations: (verb, name) of each so far; a temporary goes by the name it is meant for.
        temporaries: the real names of those created.
        fired: the verb of the operation that went wrong; empty until one did.
        free: what `free_bytes` says instead of the storage below.
    """

    def __init__(self, storage: Storage, observe: Callable[[], None] | None = None) -> None:
        self._below = storage
        self._observe = observe or (lambda: None)
        self.root, self.atomic_put = storage.root, storage.atomic_put
        self.operations: list[Operation] = []
        self.temporaries: list[str] = []
        self.fired = ""
        self.free: int | None = None
        self._fault, self._left = "", -1
        self._next_error = 0
        self._refused: tuple[str, str | None, int] | None = None
        self.dead = False

    def arm(self, number: int, fault: str) -> None:
        """Let `fault`, one of `AT`, happen once, at the operation that is number `number` from
        here on of those at which it can happen.
        """
        self._fault, self._left = fault, number

    def refuse(self, verb: str, name: str | None = None, *, code: int = errno.EIO) -> None:
        """From here on fail every operation called `verb`, or only those on `name`; "" mends it."""
        self._refused = (verb, name, code)

    # --- Storage ---

    def list(self, folder: str = "") -> list[str]:
        return self._do("list", folder, lambda: self._below.list(folder))

    def entries(self, folder: str = "") -> dict[str, str]:
        return self._do("list", folder, lambda: self._below.entries(folder))

    def exists(self, name: str) -> bool:
        return self._do("exists", name, lambda: self._below.exists(name))

    def size(self, name: str) -> int:
        return self._do("size", name, lambda: self._below.size(name))

    def open(self, name: str) -> BinaryIO:
        return self._do("open", name, lambda: self._wrapped(self._below.open(name), name))

    def create(self, name: str) -> BinaryIO:
        self.temporaries.append(name)
        return self._do("create", name, lambda: self._wrapped(self._below.create(name), name))

    def sync(self, file: BinaryIO) -> None:
        opened = cast(_File, file)
        self._do("sync", opened.name, lambda: self._below.sync(opened.file), opened.sync_failed)

    def rename(self, old: str, new: str) -> None:
        self._do("rename", new, lambda: self._below.rename(old, new))

    def delete(self, name: str) -> None:
        self._do("delete", name, lambda: self._below.delete(name))

    def free_bytes(self) -> int | None:
        return self.free if self.free is not None else self._below.free_bytes()

    def make_folder(self, folder: str) -> None:
        self._do("make_folder", folder, lambda: self._below.make_folder(folder))

    def sync_folder(self, folder: str = "") -> None:
        self._do("sync_folder", folder, lambda: self._below.sync_folder(folder))

    # --- what happens at an operation ---

    def write(self, file: "_File", data: Any) -> int:
        if self._at("write") and self._fault in (SHORT_KILLED, SHORT_ENOSPC):
            self.fired = "write"
            self._left = -1
            written = file.file.write(bytes(data)[: len(bytes(data)) // 2])
            self._next_error = errno.ENOSPC if self._fault == SHORT_ENOSPC else -1
            return written
        return self._do("write", file.name, lambda: file.file.write(data))

    def read(self, file: "_File", read: Callable[[], T]) -> T:
        return self._do("read", file.name, read)

    def _do(
        self,
        verb: str,
        name: str,
        effect: Callable[[], T],
        failed: Callable[[], None] = lambda: None,
    ) -> T:
        if self.dead or self._next_error == -1:
            self._die()
        self._observe()
        refused = self._refused and self._refused[0] == verb and self._refused[1] in (None, name)
        code = cast(tuple[str, str, int], self._refused)[2] if refused else self._next_error
        self._next_error = 0
        fires = self._at(verb)
        if fires:
            self.fired = verb
            self._left = -1
            if self._fault == KILLED_BEFORE:
                self._die()
            if self._fault != KILLED_AFTER:
                code = getattr(errno, self._fault)
        elif verb in AT.get(self._fault, ()) and self._left > 0:
            self._left -= 1
        if code:
            failed()
            raise _error(code, verb, f"{self.root}/{name}")
        self.operations.append((verb, _meant(name)))
        result = effect()
        if fires:
            self._die()
        return result

    def _at(self, verb: str) -> bool:
        return self._left == 0 and verb in AT[self._fault]

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def _wrapped(self, file: BinaryIO, name: str) -> BinaryIO:
        failed = getattr(self._below, "sync_failed", lambda _: None)
        return cast(BinaryIO, _File(self, file, name, lambda: failed(file)))


class _File:
    """An open file whose reads and writes are operations too."""

    def __init__(
        self, failpoints: Failpoints, file: BinaryIO, name: str, sync_failed: Callable[[], None]
    ) -> None:
        self._failpoints = failpoints
        self.file = file
        self.name = name
        self.sync_failed = sync_failed

    def write(self, data: Any) -> int:
        return self._failpoints.write(self, data)

    def read(self, *size: int) -> bytes:
        return self._failpoints.read(self, lambda: self.file.read(*size))

    def readinto(self, buffer: Any) -> int:
        into = cast(Any, self.file).readinto
        return self._failpoints.read(self, lambda: cast(int, into(buffer)))

    def readline(self, *size: int) -> bytes:
        return self._failpoints.read(self, lambda: self.file.readline(*size))

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def _error(code: int, verb: str, path: str) -> OSError:
    """As the local storage says it; an open file's own methods raise what the system raises."""
    cause = OSError(code, os.strerror(code), path)
    if verb in ("read", "write"):
        return cause
    what = f"cannot {verb} {path}"
    error: StorageError
    error = (
        storage_full_error(what, None, None)
        if code == errno.ENOSPC
        else StorageError(f"{what}: {cause.strerror}")
    )
    error.__cause__ = cause
    return error


def _meant(name: str) -> str:
    """`.latest.json.tmp-0123456789abcdef` is meant for `latest.json`."""
    return name.removeprefix(".").split(".tmp-")[0]
