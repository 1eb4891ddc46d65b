"""What a checkpoint directory holds and what of it is good. Reads only."""

import errno
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, BinaryIO, TypeVar

from speedtronic.checkpoint import codec, layout, reading
from speedtronic.checkpoint.quarantine import Quarantined, quarantined
from speedtronic.checkpoint.records import FileEntry, Manifest, Pointer
from speedtronic.checkpoint.storage import Storage, read_bytes
from speedtronic.errors import CorruptError, StorageError, UnsupportedFormatError

T = TypeVar("T")

ATTEMPTS = 3
# What a failed read says of the file, not of the machine.
DAMAGE = {errno.EIO, errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO}


@dataclass(frozen=True)
class PointerFinding:
    """`pointer` when `latest.json` is whole; else `problem`, which is empty when it is missing."""

    pointer: Pointer | None
    problem: str

    @property
    def present(self) -> bool:
        return self.pointer is not None or self.problem != ""


def read_pointer(storage: Storage) -> PointerFinding:
    """Read `latest.json`. Nothing it names is opened: it is a hint, the manifests are the truth.

    Raises:
        StorageError: it cannot be read here and now.
    """
    if not storage.exists(layout.POINTER):
        return PointerFinding(None, "")
    try:
        pointer = Pointer.from_bytes(_patiently(lambda: read_bytes(storage, layout.POINTER)))
        if pointer.file != layout.payload_name(pointer.step):
            raise CorruptError(f"pointer names {pointer.file!r} for step {pointer.step}")
    except CorruptError as error:
        return PointerFinding(None, str(error))
    return PointerFinding(pointer, "")


class Candidate:
    """The files of one step, looked at lazily: first the manifest, then the payload.

    Attributes:
        step: from the file names.
        files: those of payload and manifest that are there, manifest first.
    """

    def __init__(self, storage: Storage, step: int, names: Collection[str]) -> None:
        self._storage = storage
        self.step = step
        mine = (layout.manifest_name(step), layout.payload_name(step))
        self.files = [name for name in mine if name in names]

    @property
    def committed(self) -> bool:
        """Whether a manifest is there; a payload alone is a save that was cut short."""
        return layout.manifest_name(self.step) in self.files

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, whole and about this step.

        Raises:
            CorruptError: it is not.
            StorageError: it cannot be read here and now.
        """
        name = layout.manifest_name(self.step)
        data = _patiently(lambda: read_bytes(self._storage, name))
        return Manifest.from_file(data, self.step)

    def check(self) -> None:
        """Read the payload through.

        Raises:
            CorruptError: its bytes are not those that were saved; gives expected and found.
            StorageError: it cannot be read here and now, which says nothing of its bytes.
        """
        self._read(reading.check)

    def _read(self, how: Callable[[BinaryIO, int, str], T]) -> T:
        entry = self.manifest.payload
        if entry.name not in self.files:
            raise CorruptError(f"payload {entry.name} is missing")
        return _patiently(lambda: self._read_once(entry, how))

    def _read_once(self, entry: FileEntry, how: Callable[[BinaryIO, int, str], T]) -> T:
        with self._storage.open(entry.name) as file:
            try:
                return how(file, entry.size_bytes, entry.digest)
            except StorageError:
                raise
            except OSError as error:
                path = f"{self._storage.root}/{entry.name}"
                raise StorageError(f"cannot read {path}: {error.strerror}") from error

    def load(self) -> dict[str, Any]:
        """The state in the payload.

        Raises:
            CorruptError: the payload is damaged, does not load safely, or is of another step.
            StorageError: it cannot be read here and now, which says nothing of its bytes.
        """
        state = self._read(codec.load)
        if state.get("step") != self.step:
            raise CorruptError(f"payload holds step {state.get('step')!r}, expected {self.step}")
        return state


def _patiently(read: Callable[[], T]) -> T:
    """Read again where that may help, and tell damage from a machine in trouble: what the disk
    cannot give back, or is no file, is damaged; out of file handles or of permission is not."""
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


def candidates(storage: Storage) -> Iterator[Candidate]:
    """The steps that have files, newest first."""
    names = frozenset(storage.list())
    for step in layout.steps(names):
        yield Candidate(storage, step, names)


@dataclass(frozen=True)
class CheckpointFinding:
    """One step in the words of `speedtronic inspect`.

    `status`: `verified` (bytes checked against the manifest), `corrupt`, `foreign` (of another
    run), `uncommitted` (a payload without manifest), `unverified` (such a payload in a store
    without any manifest, one of a newer format, or one that cannot be read here and now).
    """

    step: int
    file: str
    status: str
    reason: str
    size_bytes: int | None = None
    digest: str | None = None
    state_digest: str | None = None
    samples: int | None = None
    tokens: int | None = None


@dataclass(frozen=True)
class Survey:
    """Everything in a checkpoint directory, newest checkpoint first."""

    pointer: Pointer | None
    pointer_problem: str
    selected: int | None
    run_id: str | None
    checkpoints: list[CheckpointFinding]
    quarantine: list[Quarantined]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self) | {"pointer": self.pointer and self.pointer.model_dump()}


def survey(storage: Storage) -> Survey:
    """Read and verify every checkpoint of a directory; nothing is changed."""
    found = read_pointer(storage)
    steps = list(candidates(storage))
    any_manifest = any(candidate.committed for candidate in steps)
    run_id = found.pointer.run_id if found.pointer else None
    findings = []
    for candidate in steps:
        finding = _finding(storage, candidate, run_id, any_manifest)
        if finding.status == "verified" and run_id is None:
            run_id = candidate.manifest.run_id
        findings.append(finding)
    selected = next((f.step for f in findings if f.status == "verified"), None)
    problem = found.problem
    if found.pointer and found.pointer.step != selected:
        problem = f"stale: names step {found.pointer.step}"
    return Survey(found.pointer, problem, selected, run_id, findings, quarantined(storage))


def _finding(
    storage: Storage, candidate: Candidate, run_id: str | None, any_manifest: bool
) -> CheckpointFinding:
    name = layout.payload_name(candidate.step)
    size = storage.size(name) if name in candidate.files else None
    basics: dict[str, Any] = {"step": candidate.step, "file": name, "size_bytes": size}
    if not candidate.committed:
        status = "uncommitted" if any_manifest else "unverified"
        return CheckpointFinding(**basics, status=status, reason="it has no manifest")
    try:
        manifest = candidate.manifest
        basics |= {
            "digest": manifest.payload.digest,
            "state_digest": manifest.state_digest,
            "samples": manifest.samples,
            "tokens": manifest.tokens,
        }
        if run_id is not None and manifest.run_id != run_id:
            reason = f"of run {manifest.run_id}, not {run_id}"
            return CheckpointFinding(**basics, status="foreign", reason=reason)
        candidate.load()
    except CorruptError as error:
        return CheckpointFinding(**basics, status="corrupt", reason=str(error))
    except (UnsupportedFormatError, StorageError) as error:
        return CheckpointFinding(**basics, status="unverified", reason=str(error))
    return CheckpointFinding(**basics, status="verified", reason="")
