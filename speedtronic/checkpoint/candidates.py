"""List the checkpoints of a directory, and read and verify their files. Nothing is written."""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, TypeVar

from speedtronic.checkpoint import codec, layout, reading
from speedtronic.checkpoint.agreement import disagreements
from speedtronic.checkpoint.contents import validate_facts
from speedtronic.checkpoint.records import FileEntry, Manifest, Pointer
from speedtronic.errors import (
    CorruptError,
    NoValidCheckpointError,
    StorageError,
    UnsupportedFormatError,
)
from speedtronic.machine_errors import is_machine_failure
from speedtronic.storage.base import FILE, Storage, read_record

T = TypeVar("T")

ATTEMPTS = 3
# Failed reads with these errors are the file's fault; any other is the machine's.
DAMAGE = {errno.EIO, errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO}

IRREGULAR_REMEDY = (
    "Put the files themselves in its place (`cp --dereference` copies what a link leads to), "
    "or train into another directory"
)


@dataclass(frozen=True)
class PointerFinding:
    """What `latest.json` says.

    Attributes:
        pointer: its content; None if it is missing or damaged.
        problem: why it is damaged; empty if it is whole or missing.
    """

    pointer: Pointer | None
    problem: str

    @property
    def present(self) -> bool:
        """Whether the file exists, whole or damaged."""
        return self.pointer is not None or self.problem != ""


def read_pointer(storage: Storage) -> PointerFinding:
    """Read `latest.json`. The files it names are not opened: the manifests decide, not the pointer.

    Raises:
        StorageError: the machine could not read it; that says nothing about its content.
    """
    if not storage.exists(layout.POINTER):
        return PointerFinding(None, "")
    try:
        pointer = Pointer.from_bytes(patiently(lambda: read_record(storage, layout.POINTER)))
        if pointer.file != layout.payload_name(pointer.step):
            raise CorruptError(f"pointer names {pointer.file!r} for step {pointer.step}")
    except CorruptError as error:
        return PointerFinding(None, str(error))
    return PointerFinding(pointer, "")


class Candidate:
    """Reads the manifest and the payload of one step, each only when it is asked for.

    Attributes:
        step: from the file names.
        files: names of the manifest and payload that exist as regular files, manifest first.
        irregular: entries with such a name that are no regular file, and what each is instead.
    """

    def __init__(self, storage: Storage, step: int, entries: Mapping[str, str]) -> None:
        self._storage = storage
        self.step = step
        mine = [layout.manifest_name(step), layout.payload_name(step)]
        self.files = [name for name in mine if entries.get(name) == FILE]
        self.irregular = {n: entries[n] for n in mine if n in entries and n not in self.files}

    @property
    def committed(self) -> bool:
        """Whether a manifest exists; a payload without one is left of an interrupted save."""
        manifest = layout.manifest_name(self.step)
        return manifest in self.files or manifest in self.irregular

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, read once and verified to be of this step.

        Raises:
            CorruptError: it is missing, damaged or of another step.
            StorageError: the machine could not read it.
            UnsupportedFormatError: a newer version wrote it.
        """
        name = layout.manifest_name(self.step)
        self._check_regular(name)
        data = patiently(lambda: read_record(self._storage, name))
        return Manifest.from_file(data, self.step)

    @property
    def readable_run_id(self) -> str | None:
        """The run that the manifest names; None without a manifest that can be read."""
        try:
            return self.manifest.run_id if self.committed else None
        except (CorruptError, StorageError, UnsupportedFormatError):
            return None

    def is_foreign_to(self, run_id: str | None) -> bool:
        """Whether the manifest names another run than `run_id`.

        False if `run_id` is None, or without an intact manifest.

        Raises:
            StorageError: the machine could not read the manifest.
        """
        if run_id is None or layout.manifest_name(self.step) not in self.files:
            return False
        try:
            return self.manifest.run_id != run_id
        except (CorruptError, UnsupportedFormatError):
            return False

    def refuse_irregular(self) -> None:
        """Raise if an entry with the name of one of the files is not a regular file.

        A resume must not step back past it: what a link leads to may be anybody's work.

        Raises:
            NoValidCheckpointError: names each such entry, says what it is and what to do.
        """
        if self.irregular:
            raise NoValidCheckpointError(
                f"{self.describe_irregular()}; nothing was changed. {IRREGULAR_REMEDY}"
            )

    def describe_irregular(self) -> str:
        """Name each entry that is no regular file, with its path and what it is instead."""
        root = self._storage.root
        found = [f"{root}/{name} is {kind}" for name, kind in self.irregular.items()]
        return f"{'; '.join(found)}, expected {FILE}"

    def check(self) -> None:
        """Verify the payload's bytes against the manifest, without decoding them.

        Raises:
            CorruptError: its bytes are not those that were saved; gives expected and found.
            StorageError: the machine could not read it; that says nothing about its bytes.
        """
        self._read(reading.verify_bytes)

    def _read(self, how: Callable[[BinaryIO, int, str], T]) -> T:
        entry = self.manifest.payload
        self._check_regular(entry.name)
        if entry.name not in self.files:
            raise CorruptError(f"payload {entry.name} is missing")
        return patiently(lambda: self._read_once(entry, how))

    def _check_regular(self, name: str) -> None:
        if name in self.irregular:
            raise CorruptError(f"{name} is {self.irregular[name]}, expected {FILE}")

    def _read_once(self, entry: FileEntry, how: Callable[[BinaryIO, int, str], T]) -> T:
        path = f"{self._storage.root}/{entry.name}"
        with self._storage.open(entry.name) as file:
            try:
                return how(file, entry.size_bytes, entry.digest)
            except codec.CannotLoadError as error:
                raise StorageError(f"cannot load {path} here and now: {error}") from error
            except StorageError:
                raise
            except OSError as error:
                raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
            except RuntimeError as error:  # no thread could be started
                if not is_machine_failure(error):
                    raise
                raise StorageError(f"cannot load {path} here and now: {error}") from error

    def load(self) -> dict[str, Any]:
        """Load the state in the payload, with every check that needs no model.

        Raises:
            CorruptError: as `load_unjudged`, or its counters contradict each other or the manifest.
            StorageError, UnsupportedFormatError: as `load_unjudged`.
        """
        state = self.load_unjudged()
        if wrong := disagreements(self.manifest, state):
            raise CorruptError(f"payload is damaged: {'; '.join(wrong)}")
        return state

    def load_unjudged(self) -> dict[str, Any]:
        """Load the state in the payload; contradictions between its values are not looked for.

        Raises:
            CorruptError: the payload is damaged, does not load safely, is of another step, or holds
                a value of the wrong type or range.
            StorageError: the machine could not read it; that says nothing about its bytes.
            UnsupportedFormatError: a newer version wrote it.
        """
        state = self._read(codec.load_payload)
        validate_facts(state)
        if state["step"] != self.step:
            raise CorruptError(f"payload holds step {state['step']}, expected {self.step}")
        return state


def patiently(read: Callable[[], T]) -> T:
    """Call `read`, up to three times, and tell damage from a machine in trouble.

    A file that the disk cannot give back, or that is no file, is damaged. Lack of permission or of
    file handles says nothing about the file.

    Raises:
        CorruptError: the file is damaged.
        StorageError: the machine could not read it.
    """
    for attempt in range(ATTEMPTS):
        try:
            return read()
        except StorageError as error:
            damaged = _errno(error) in DAMAGE
            if attempt == ATTEMPTS - 1:
                if damaged:
                    raise CorruptError(str(error)) from error
                raise
    raise AssertionError


def _errno(error: StorageError) -> int | None:
    return error.__cause__.errno if isinstance(error.__cause__, OSError) else None


def candidates(storage: Storage, entries: Mapping[str, str] | None = None) -> Iterator[Candidate]:
    """List the steps that have files, newest first.

    Args:
        entries: the storage's, as `Storage.entries` returns them, if they were read already.
    """
    entries = storage.entries() if entries is None else entries
    for step in layout.steps_newest_first(entries):
        candidate = Candidate(storage, step, entries)
        if candidate.files or candidate.irregular:  # else the name only resembles theirs
            yield candidate
