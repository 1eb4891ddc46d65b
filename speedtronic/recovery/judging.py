"""Judge the checkpoints of a run that may be training meanwhile: one snapshot for all checks.

Candidates are loaded newest first, in a child process, until one is good in every respect.
Retention and new saves may change the files meanwhile. So a snapshot that shows something wrong is
believed only if no file came or went while it was taken. No lock is taken and nothing is written.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from speedtronic.checkpoint import Manifest, Pointer, layout
from speedtronic.checkpoint.candidates import (
    Candidate,
    PointerFinding,
    candidates,
    read_pointer,
)
from speedtronic.checkpoint.selection import refuse_if_anything_was_lost
from speedtronic.checkpoint.verdicts import Verdict, walk
from speedtronic.errors import (
    CheckpointError,
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
)
from speedtronic.recovery.counter_check import disagreements
from speedtronic.storage.base import Storage
from speedtronic.worker.load import LoadProcess
from speedtronic.worker.messages import Facts, Loaded

MAX_SNAPSHOTS = 3


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint that a child process has loaded and found good."""

    candidate: Candidate
    manifest: Manifest
    facts: Facts

    @property
    def step(self) -> int:
        return self.candidate.step

    @property
    def pointer(self) -> Pointer:
        """What `latest.json` must say if this is the newest."""
        return self.manifest.pointer()


Judgement = Verdict[VerifiedCheckpoint]


class ContradictionError(CorruptError):
    """A payload that loads, with values that contradict each other or are not finite."""


@dataclass(frozen=True)
class StoreSnapshot:
    """The checkpoints of a directory as they were at one moment.

    Attributes:
        names: of all files in the directory.
        pointer: what `latest.json` says.
        run_id: the run whose checkpoints count; None if that is not known.
        judgements: newest first, down to the selected one, or to one that blocks a resume.
        previous: the newest checkpoint of this run before the selected one; not loaded.
        lost: why a resume would refuse to start at step 0, where only uncommitted and foreign
            checkpoints are left; else empty.
    """

    names: frozenset[str]
    pointer: PointerFinding
    run_id: str | None
    judgements: list[Judgement] = field(default_factory=list)
    previous: Candidate | None = None
    lost: str = ""

    @property
    def selected(self) -> VerifiedCheckpoint | None:
        """The checkpoint that a resume would start from; None if none is good."""
        return next((found.loaded for found in self.judgements if found.loaded), None)

    @property
    def is_blocked(self) -> bool:
        """Whether a resume would end with an error at one of them, whatever is older."""
        return any(found.blocks_resume for found in self.judgements)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever committed here, so that a resume would start at step 0."""
        nothing = all(found.status == "uncommitted" for found in self.judgements)
        return nothing and not self.pointer.present and not self.lost

    @property
    def is_clean(self) -> bool:
        """Whether everything is as a completed save leaves it."""
        ours = [found for found in self.judgements if found.status != "foreign"]
        if not ours:
            return not self.pointer.present and not self.lost
        best = self.selected
        return best is not None and best.pointer == self.pointer.pointer and len(ours) == 1


class CheckpointJudge:
    """Judges the checkpoints in `storage`; loads each only once, however many snapshots it takes.

    Args:
        process: the child that loads.
        trained_here: id of the run that was last trained here; None if that is not known.
        first_saves: as `CheckpointStore` takes it.
    """

    def __init__(
        self,
        storage: Storage,
        process: LoadProcess,
        trained_here: str | None,
        first_saves: Collection[int],
    ) -> None:
        self._storage = storage
        self._first_saves = first_saves
        self._process = process
        self._trained_here = trained_here
        self._identities: dict[int, tuple[object, ...]] = {}  # by step, just before it is judged
        self._answers: dict[tuple[object, ...], Loaded] = {}  # by identity

    def take_snapshot(self) -> tuple[StoreSnapshot, bool]:
        """Judge the checkpoints; take another snapshot if files changed and something seems wrong.

        Returns:
            The last snapshot, and whether it can be believed: False if files changed each time.
        """
        for _ in range(MAX_SNAPSHOTS):
            snapshot = self._take_one()
            if snapshot.is_clean:
                return snapshot, True
            now = frozenset(self._storage.entries()), read_pointer(self._storage)
            if now == (snapshot.names, snapshot.pointer):
                return snapshot, True
        return snapshot, False

    def _take_one(self) -> StoreSnapshot:
        entries, pointer = self._storage.entries(), read_pointer(self._storage)
        names, found = frozenset(entries), list(candidates(self._storage, entries))
        run_id = self._run_id(found, pointer)
        judged: list[Judgement] = []
        for verdict in walk(self._still_there(found), run_id, self._load):
            if self._changed_meanwhile(verdict):
                continue
            judged.append(verdict)
            if verdict.loaded is not None:
                run_id = verdict.loaded.manifest.run_id
                older = found[found.index(verdict.candidate) + 1 :]
                previous = next((c for c in older if c.readable_run_id == run_id), None)
                return StoreSnapshot(names, pointer, run_id, judged, previous)
            if verdict.blocks_resume:
                break
        return StoreSnapshot(names, pointer, run_id, judged, lost=self._lost(judged, pointer))

    def _lost(self, judged: list[Judgement], pointer: PointerFinding) -> str:
        """Say why a resume would refuse to start at step 0; empty if it would not, or if one of the
        judgements says why."""
        if any(verdict.status not in ("uncommitted", "foreign") for verdict in judged):
            return ""
        try:
            refuse_if_anything_was_lost(self._storage, pointer, judged, self._first_saves)
        except (NoValidCheckpointError, LegacyStoreError) as error:
            return str(error)
        return ""

    def _run_id(self, found: list[Candidate], pointer: PointerFinding) -> str | None:
        """The id of the run trained here, if a checkpoint of it is left; else the pointer's."""
        here = self._trained_here
        if here is not None and any(candidate.readable_run_id == here for candidate in found):
            return here
        return pointer.pointer.run_id if pointer.pointer else None

    def _still_there(self, found: Iterable[Candidate]) -> Iterator[Candidate]:
        """Note the identity of each candidate before it is judged; skip those deleted meanwhile."""
        for candidate in found:
            identity = self._identity(candidate.step)
            listed = (candidate.step, *candidate.files)
            unchanged = identity[: len(listed)] == listed
            self._identities[candidate.step] = identity
            if unchanged or candidate.irregular or not candidate.committed:
                yield candidate

    def _changed_meanwhile(self, verdict: Judgement) -> bool:
        """Whether files of a step changed while it was judged, so that its error proves nothing."""
        if verdict.error is None:
            return False
        before = self._identities[verdict.step]
        if before == self._identity(verdict.step):
            return False
        self._answers.pop(before, None)
        return True

    def _load(self, candidate: Candidate) -> VerifiedCheckpoint:
        """Load a candidate in the child process; a `verdicts.Loader`."""
        identity = self._identities[candidate.step]
        if identity not in self._answers:
            self._answers[identity] = self._process.load(self._storage.root, candidate.step)
        return _verified(candidate, self._answers[identity])

    def _identity(self, step: int) -> tuple[object, ...]:
        """Summarise the files of a step; differs after they are deleted or replaced."""
        there = next((c for c in candidates(self._storage) if c.step == step), None)
        if there is None:
            return (step,)
        size: object = None
        if layout.payload_name(step) in there.files:
            try:
                size = self._storage.size(layout.payload_name(step))
            except StorageError:
                size = None
        return (step, *there.files, size, _digest_of(there))


def _verified(candidate: Candidate, answer: Loaded) -> VerifiedCheckpoint:
    """Turn a child's answer into a good checkpoint.

    Raises:
        CorruptError: the child found it damaged; ContradictionError if it loads all the same.
        StorageError: the child could not judge it.
    """
    if answer.outcome == "corrupt":
        raise CorruptError(answer.reason)
    if answer.manifest is None or answer.facts is None:
        raise StorageError(answer.reason)
    if wrong := disagreements(answer.manifest, answer.facts):
        raise ContradictionError("; ".join(wrong))
    return VerifiedCheckpoint(candidate, answer.manifest, answer.facts)


def _digest_of(candidate: Candidate) -> str | None:
    try:
        return candidate.manifest.payload.digest if candidate.committed else None
    except CheckpointError:
        return None
