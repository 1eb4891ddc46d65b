"""One look at the checkpoints of a run: which is good, and what is wrong with those before it.

Candidates are loaded newest first, in a process of their own, until one is good in every respect.
Files come and go under it while a run trains. So where something seems wrong it looks again, and
believes what it sees twice. It takes no lock and writes nothing.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from speedtronic.checkpoint import Manifest, Pointer, layout
from speedtronic.checkpoint.candidates import (
    Candidate,
    PointerFinding,
    candidates,
    foreign_to,
    read_pointer,
)
from speedtronic.checkpoint.selection import irregular, refuse_if_anything_was_lost
from speedtronic.errors import (
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
    UnsupportedFormatError,
)
from speedtronic.recovery.counter_check import disagreements
from speedtronic.storage.base import Storage
from speedtronic.worker.load import Facts, Loaded, LoadProcess

LOOKS = 3

# A resume would end at these two. `irregular`: a link, a folder or the like has the name of one of
# its files. `stuck`: it cannot be judged here and now.
ENDS = ("irregular", "stuck")
Verdict = Literal["good", "uncommitted", "foreign", "damaged", "disagrees", "irregular", "stuck"]


@dataclass(frozen=True)
class Judged:
    """One step that has files, and what is thought of it."""

    candidate: Candidate
    verdict: Verdict
    reason: str = ""
    manifest: Manifest | None = None
    facts: Facts | None = None

    @property
    def step(self) -> int:
        return self.candidate.step

    @property
    def pointer(self) -> Pointer | None:
        """What `latest.json` says when this is the newest."""
        return self.manifest.pointer() if self.manifest else None


@dataclass(frozen=True)
class Look:
    """The checkpoints as they were at one moment.

    Attributes:
        names: of all files in their directory.
        pointer: what `latest.json` says.
        run_id: whose checkpoints are looked for; None where there are none.
        judged: newest first, down to the selected one, or to one that ends a resume.
        previous: the newest checkpoint of this run before the selected one; not loaded.
        lost: why a resume would refuse where nothing is judged to be good or bad; else empty.
    """

    names: frozenset[str]
    pointer: PointerFinding
    run_id: str | None
    judged: list[Judged]
    previous: Candidate | None = None
    lost: str = ""

    @property
    def selected(self) -> Judged | None:
        """The checkpoint that a resume would start from."""
        return next((found for found in self.judged if found.verdict == "good"), None)

    @property
    def is_stuck(self) -> bool:
        """Whether a resume would end with an error at one of them, whatever is behind it."""
        return any(found.verdict in ENDS for found in self.judged)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever committed here, so that a resume would start at step 0."""
        nothing = all(found.verdict == "uncommitted" for found in self.judged)
        return nothing and not self.pointer.present and not self.lost

    @property
    def is_plain(self) -> bool:
        """Whether everything is as a finished save leaves it."""
        mine = [found for found in self.judged if found.verdict != "foreign"]
        if not mine:
            return not self.pointer.present and not self.lost
        best = self.selected
        return best is not None and best.pointer == self.pointer.pointer and len(mine) == 1


class Looking:
    """Looks at the checkpoints in `storage`; loads each only once, however often it looks.

    Args:
        trained_here: id of the run that was last trained here; None if that is not known.
        first_saves: as `CheckpointStore` takes it.
    """

    def __init__(
        self,
        storage: Storage,
        loader: LoadProcess,
        trained_here: str | None,
        first_saves: Collection[int],
    ) -> None:
        self._storage = storage
        self._first_saves = first_saves
        self._loader = loader
        self._trained_here = trained_here
        self._loaded: dict[tuple[object, ...], Judged] = {}

    def look(self) -> tuple[Look, bool]:
        """The look, and whether it can be believed: False where things would not hold still."""
        for _ in range(LOOKS):
            look = self._once()
            if look.is_plain:
                return look, True
            now = frozenset(self._storage.entries()), read_pointer(self._storage)
            if now == (look.names, look.pointer):
                return look, True
        return look, False

    def _once(self) -> Look:
        entries, pointer = self._storage.entries(), read_pointer(self._storage)
        names, found = frozenset(entries), list(candidates(self._storage, entries))
        run_id = self._run_id(found, pointer)
        judged: list[Judged] = []
        for position, candidate in enumerate(found):
            this = self._judge(candidate, run_id)
            if this is None:
                continue
            judged.append(this)
            if this.verdict == "good":
                assert this.manifest is not None
                run_id = this.manifest.run_id
                older = (c for c in found[position + 1 :] if _run_of(c) == run_id)
                return Look(names, pointer, run_id, judged, next(older, None))
            if this.verdict in ENDS:
                break
        return Look(names, pointer, run_id, judged, lost=self._lost(judged, pointer))

    def _lost(self, judged: list[Judged], pointer: PointerFinding) -> str:
        if any(found.verdict not in ("uncommitted", "foreign") for found in judged):
            return ""  # whatever it is, it is said of that checkpoint
        uncommitted = [found.candidate for found in judged if found.verdict == "uncommitted"]
        foreign = len(judged) - len(uncommitted)
        try:
            refuse_if_anything_was_lost(
                self._storage, pointer, [], uncommitted, foreign, self._first_saves
            )
        except (NoValidCheckpointError, LegacyStoreError) as error:
            return str(error)
        return ""

    def _run_id(self, found: list[Candidate], pointer: PointerFinding) -> str | None:
        """That of the run that was trained here, if anything of it is left; else the pointer's."""
        here = self._trained_here
        if here is not None and any(_run_of(candidate) == here for candidate in found):
            return here
        return pointer.pointer.run_id if pointer.pointer else None

    def _judge(self, candidate: Candidate, run_id: str | None) -> Judged | None:
        """None when it has vanished or changed meanwhile, as retention and new saves do it."""
        if candidate.irregular and not foreign_to(run_id, candidate):
            return Judged(candidate, "irregular", irregular(self._storage, candidate))
        if not candidate.committed:
            return Judged(candidate, "uncommitted", "it has no manifest")
        before = self._identity(candidate.step)
        if before[: len(candidate.files) + 1] != (candidate.step, *candidate.files):
            return None  # gone since they were listed
        try:
            manifest = candidate.manifest
            if run_id is not None and manifest.run_id != run_id:
                return Judged(candidate, "foreign", f"of run {manifest.run_id}", manifest)
            if before in self._loaded:
                return self._loaded[before]
            verdict = _verdict(candidate, self._loader.load(self._storage.root, candidate.step))
        except CorruptError as error:
            verdict = Judged(candidate, "damaged", str(error))
        except (UnsupportedFormatError, StorageError) as error:
            verdict = Judged(candidate, "stuck", str(error))
        if verdict.verdict != "good" and before != self._identity(candidate.step):
            return None
        self._loaded[before] = verdict
        return verdict

    def _identity(self, step: int) -> tuple[object, ...]:
        """Changes when its files are deleted or replaced."""
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


def _verdict(candidate: Candidate, loaded: Loaded) -> Judged:
    if loaded.outcome == "corrupt":
        return Judged(candidate, "damaged", loaded.reason)
    if loaded.manifest is None or loaded.facts is None:
        return Judged(candidate, "stuck", loaded.reason)
    wrong = disagreements(loaded.manifest, loaded.facts)
    verdict: Verdict = "disagrees" if wrong else "good"
    return Judged(candidate, verdict, "; ".join(wrong), loaded.manifest, loaded.facts)


def _run_of(candidate: Candidate) -> str | None:
    try:
        return candidate.manifest.run_id if candidate.committed else None
    except (CorruptError, StorageError, UnsupportedFormatError):
        return None


def _digest_of(candidate: Candidate) -> str | None:
    try:
        return candidate.manifest.payload.digest if candidate.committed else None
    except (CorruptError, StorageError, UnsupportedFormatError):
        return None
