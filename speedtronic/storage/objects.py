"""Implements `Storage` in an object store, where an object appears complete or not at all.

There are no temporaries and renames. Data are uploaded in parts while they are written, and `sync`
completes the object; before that, and after a crash, nothing of it can be listed or read. It is
completed only if nobody wrote the same name since it was created, so a process that was stopped
and whose run another took over is refused. `storage.urls.open_storage` opens these, for `memory://`
and `s3://`.
"""

import errno
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

import xxhash

from speedtronic.errors import SpeedtronicError, StorageError
from speedtronic.storage.base import FILE

SMALL_BYTES = 8 * 2**20
"""Largest object that is put by one request; a larger one is uploaded in parts."""

_SWAPPING = threading.Lock()


class ObjectStorage:
    """Objects in the memory of this process, and the base class of other object stores.

    Args:
        filesystem: of fsspec, without a cache of listings.
        path: of the folder in it.
        url: of the folder, for messages.
    """

    atomic_put: bool = True

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem = filesystem
        self._folder = path.rstrip("/")
        self.root = url.rstrip("/")

    def list(self, folder: str = "") -> list[str]:
        return [name for name, kind in self.entries(folder).items() if kind == FILE]

    def entries(self, folder: str = "") -> dict[str, str]:
        path = self._key(folder).rstrip("/")
        with self._errors("list", folder):
            try:
                found = self._filesystem.ls(path, detail=True)
            except FileNotFoundError as error:
                if error.__cause__ is not None:  # the server says that there is no such bucket
                    raise
                return {}
            # Files last, so that a file wins over a folder of the same name.
            found = sorted(found, key=lambda entry: entry["type"] == "file")
            paths = {entry["name"].rstrip("/"): entry["type"] for entry in found}
            return {
                name.rpartition("/")[2]: FILE if kind == "file" else "a folder"
                for name, kind in paths.items()
                if name.rpartition("/")[0] == path
            }

    def exists(self, name: str) -> bool:
        with self._errors("look for", name):
            try:
                self._filesystem.info(self._key(name))
            except FileNotFoundError as error:
                if error.__cause__ is not None:
                    raise
                return False
            return True

    def size(self, name: str) -> int:
        with self._errors("read", name):
            return int(self._filesystem.info(self._key(name))["size"])

    def open(self, name: str) -> BinaryIO:
        with self._errors("read", name):
            return io.BytesIO(self._filesystem.cat_file(self._key(name)))

    def create(self, name: str) -> BinaryIO:
        """Open a new object, with which `sync` replaces an existing one."""
        return cast(BinaryIO, _Upload(self, name))

    def sync(self, file: BinaryIO) -> None:
        cast(_Upload, file).commit()

    def rename(self, old: str, new: str) -> None:
        with self._errors("copy", new):
            self._filesystem.cp_file(self._key(old), self._key(new))
        self.delete(old)

    def delete(self, name: str) -> None:
        with self._errors("delete", name), suppress(FileNotFoundError):
            self._filesystem.rm_file(self._key(name))

    def free_bytes(self) -> int | None:
        return None

    def make_folder(self, folder: str) -> None:
        """Do nothing: a folder is a common prefix of names."""

    def sync_folder(self, folder: str = "") -> None:
        """Do nothing: an answered request is durable."""

    def version(self, name: str) -> str:
        """Return the version of an object; empty if it does not exist."""
        return self.read_version(name)[1]

    def read_version(self, name: str) -> tuple[bytes, str]:
        """Return the content and version of an object, both empty if it does not exist.

        If it is replaced meanwhile, the version may be the old one, with which every swap fails.
        """
        with self._errors("read", name):
            try:
                content = cast(bytes, self._filesystem.cat_file(self._key(name)))
            except FileNotFoundError:
                return b"", ""
        return content, xxhash.xxh3_128_hexdigest(content)

    def age_s(self, name: str) -> float:
        """Return the seconds since an object was written, by the store's clock; 0 if it is gone."""
        with self._errors("read", name):
            try:
                written: datetime = self._filesystem.modified(self._key(name))
            except FileNotFoundError:
                return 0.0
        return (datetime.now(UTC) - written).total_seconds()

    def swap(self, name: str, content: bytes, version: str) -> str | None:
        """Put an object only if its version is still `version`.

        Returns:
            The new version, or None if another process was faster; then nothing was changed.
        """
        with _SWAPPING:  # a lock of this process suffices: its memory is not shared
            if self.version(name) != version:
                return None
            with self._errors("write", name):
                self._filesystem.pipe_file(self._key(name), content)
            return xxhash.xxh3_128_hexdigest(content)

    def abort_unfinished(self) -> None:
        """Abort the uploads of processes that died. The caller holds the lock."""

    def begin_parts(self, name: str) -> Any:
        """Open an fsspec file that uploads in parts; None if the store needs none."""
        return None

    def complete_parts(self, name: str, parts: Any, version: str) -> None:
        """Complete an upload of `begin_parts`, only if the object still has `version`."""
        raise NotImplementedError

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _written_since(self, name: str) -> StorageError:
        return StorageError(f"cannot write {self.root}/{name}: another process did so meanwhile")

    @contextmanager
    def _errors(self, verb: str, name: str) -> Iterator[None]:
        """Turn any exception of a client (botocore, aiohttp, OSError) into StorageError."""
        try:
            yield
        except SpeedtronicError:
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, FileNotFoundError):
                error.errno = errno.ENOENT  # clients leave it out, and callers look at it
            raise StorageError(f"cannot {verb} {self.root}/{name}: {reason}") from error


class _Upload(io.RawIOBase):
    """An object being written; closing it without `commit` discards it."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        super().__init__()
        self.name = name
        self._storage = storage
        self._version = storage.version(name)
        self._small: bytearray | None = bytearray()
        self._parts: Any = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`, and return its length."""
        view = memoryview(data).cast("B")
        with self._storage._errors("write", self.name):
            if self._small is not None:
                self._small += view
                if len(self._small) > SMALL_BYTES:
                    self._begin_parts()
            else:
                self._parts.write(view)
        return len(view)

    def commit(self) -> None:
        """Complete the object, which is durable under its name on return."""
        storage, name = self._storage, self.name
        if self._small is None:
            with storage._errors("write", name):
                storage.complete_parts(name, self._parts, self._version)
            self._parts = None
            return
        content = bytes(self._small)
        refused = storage.swap(name, content, self._version) is None
        # A request is repeated if its answer was lost; the first one makes the second one fail.
        if refused and storage.read_version(name)[0] != content:
            raise storage._written_since(name)

    def close(self) -> None:
        """Abort the upload if it was not committed."""
        if not self.closed and self._parts is not None:
            parts, self._parts = self._parts, None
            parts.closed = True  # or its finalizer would upload the rest
            with suppress(Exception):  # an upload that cannot be aborted is invisible too
                parts.discard()
        self._small = bytearray()
        super().close()

    def _begin_parts(self) -> None:
        self._parts = self._storage.begin_parts(self.name)
        if self._parts is not None:
            self._parts.write(self._small)
            self._small = None
