"""What a checkpoint directory holds and what of it is good. Reads only."""

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, BinaryIO, TypeVar

from speedtronic.checkpoint import codec, layout, reading
from speedtronic.checkpoint.agreement import disagreements
from speedtronic.checkpoint.contents import validate_facts
from speedtronic.checkpoint.quarantine import Quarantined, quarantined
from speedtronic.checkpoint.records import FileEntry, Manifest, Pointer
from speedtronic.errors import CorruptError, StorageError, UnsupportedFormatError
from speedtronic.machine_errors import is_machine_failure
from speedtronic.storage.base import FILE, Storage, read_record

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
        pointer = Pointer.from_bytes(patiently(lambda: read_record(storage, layout.POINTER)))
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
        irregular: what has the name of one of them and is no regular file, by name and in words.
    """

    def __init__(self, storage: Storage, step: int, entries: Mapping[str, str]) -> None:
        self._storage = storage
        self.step = step
        mine = [layout.manifest_name(step), layout.payload_name(step)]
        self.files = [name for name in mine if entries.get(name) == FILE]
        self.irregular = {n: entries[n] for n in mine if n in entries and n not in self.files}

    @property
    def committed(self) -> bool:
        """Whether a manifest is there; a payload alone is a save that was cut short."""
        manifest = layout.manifest_name(self.step)
        return manifest in self.files or manifest in self.irregular

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, whole and about this step.

        Raises:
            CorruptError: it is not.
            StorageError: it cannot be read here and now.
        """
        name = layout.manifest_name(self.step)
        self._refuse_irregular(name)
        data = patiently(lambda: read_record(self._storage, name))
        return Manifest.from_file(data, self.step)

    def check(self) -> None:
        """Read the payload through.

        Raises:
            CorruptError: its bytes are not those that were saved; gives expected and found.
            StorageError: it cannot be read here and now, which says nothing of its bytes.
        """
        self._read(reading.verify_bytes)

    def _read(self, how: Callable[[BinaryIO, int, str], T]) -> T:
        entry = self.manifest.payload
        self._refuse_irregular(entry.name)
        if entry.name not in self.files:
            raise CorruptError(f"payload {entry.name} is missing")
        return patiently(lambda: self._read_once(entry, how))

    def _refuse_irregular(self, name: str) -> None:
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
            except RuntimeError as error:  # no thread to be had
                if not is_machine_failure(error):
                    raise
                raise StorageError(f"cannot load {path} here and now: {error}") from error

    def load(self) -> dict[str, Any]:
        """The state in the payload, good in every respect that can be seen without a model.

        Raises:
            CorruptError: as `load_unjudged`, or what it says of itself does not agree.
            StorageError, UnsupportedFormatError: as `load_unjudged`.
        """
        state = self.load_unjudged()
        if wrong := disagreements(self.manifest, state):
            raise CorruptError(f"payload is damaged: {'; '.join(wrong)}")
        return state

    def load_unjudged(self) -> dict[str, Any]:
        """The state in the payload, each fact of the right type and range.

        Raises:
            CorruptError: the payload is damaged, does not load safely, is of another step, or holds
                a fact that is none.
            StorageError: it cannot be read here and now, which says nothing of its bytes.
            UnsupportedFormatError: a newer version wrote it.
        """
        state = self._read(codec.load_payload)
        validate_facts(state)
        if state["step"] != self.step:
            raise CorruptError(f"payload holds step {state['step']}, expected {self.step}")
        return state


def patiently(read: Callable[[], T]) -> T:
    """Read again where that may help, and tell damage from a machine in trouble: what the disk
    cannot give back, or is no file, is damaged; out of file handles or of permission is not.

    Raises:
        CorruptError, StorageError: accordingly.
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
    """The steps that have files, newest first; `entries` are those of the storage, if known."""
    entries = storage.entries() if entries is None else entries
    for step in layout.steps_newest_first(entries):
        candidate = Candidate(storage, step, entries)
        if candidate.files or candidate.irregular:  # not just a file with a name like theirs
            yield candidate


def foreign_to(run_id: str | None, candidate: Candidate) -> bool:
    """Whether a candidate surely belongs to another run than `run_id`; False without a readable
    manifest that says so."""
    if run_id is None or layout.manifest_name(candidate.step) not in candidate.files:
        return False
    try:
        return candidate.manifest.run_id != run_id
    except (CorruptError, UnsupportedFormatError):
        return False


@dataclass(frozen=True)
class CheckpointFinding:
    """One step in the words of `speedtronic inspect`.

    `status`: `verified` (bytes checked against the manifest), `corrupt`, `foreign` (of another
    run), `uncommitted` (a payload without manifest), `irregular` (a link, a folder, a pipe or the
    like has the name of one of its files), `unverified` (such a payload in a store
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
    # A resume refuses to step back past what is no regular file.
    ends = next((f for f in findings if f.status in ("verified", "irregular")), None)
    selected = ends.step if ends and ends.status == "verified" else None
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
    if not candidate.committed and not candidate.irregular:
        status = "uncommitted" if any_manifest else "unverified"
        return CheckpointFinding(**basics, status=status, reason="it has no manifest")
    irregular = "; ".join(f"{file} is {kind}" for file, kind in candidate.irregular.items())
    if irregular and not foreign_to(run_id, candidate):
        return CheckpointFinding(**basics, status="irregular", reason=irregular)
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
