"""What must hold after every fault, and the oracle that knows what was promised."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import xxhash

from speedtronic.checkpoint import CheckpointStore, layout
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.quarantine import REASON_SUFFIX, quarantined
from speedtronic.checkpoint.records import Manifest, Pointer
from speedtronic.checkpoint.selection import CUT_SHORT
from speedtronic.storage.base import Storage
from speedtronic.storage.names import is_temporary
from tests.robustness.bucket import Bucket, S3Bucket
from tests.robustness.model import Disk

Place = Disk | Bucket | S3Bucket  # where the files are
Saved = tuple[int, str]  # step and state digest
MakeStore = Callable[..., CheckpointStore]
MakeState = Callable[[int], dict[str, Any]]


@dataclass
class Oracle:
    """What a run was promised, noted outside it and its disk.

    Attributes:
        acknowledged: the newest save that returned, or that a process went on from.
        in_flight: saves begun since then, whose outcome nobody was told.
        damaged: whole files that something else than this program spoiled, as they are now.
        replaces: whether a good checkpoint is to make way for another state of its step.
    """

    acknowledged: Saved | None = None
    in_flight: list[Saved] = field(default_factory=list)
    damaged: set[bytes] = field(default_factory=set)
    replaces: bool = False

    @property
    def rejects(self) -> bool:
        """Whether files may be in quarantine, and the pointer name one of them."""
        return bool(self.damaged) or self.replaces

    def begins(self, saved: Saved) -> None:
        self.in_flight.append(saved)

    def acknowledges(self, saved: Saved) -> None:
        self.acknowledged = saved
        self.in_flight = self.in_flight[self.in_flight.index(saved) + 1 :]

    def goes_on_from(self, saved: Saved | None) -> None:
        """A process selected `saved`; from here on that is what must not be lost."""
        self.acknowledged, self.in_flight = saved, []

    def allows(self, saved: Saved | None) -> bool:
        return saved == self.acknowledged or saved in self.in_flight

    def copy(self) -> "Oracle":
        return Oracle(self.acknowledged, list(self.in_flight), set(self.damaged), self.replaces)

    def __str__(self) -> str:
        return f"acknowledged {self.acknowledged}, in flight {self.in_flight}"


def violations(
    disk: Place, oracle: Oracle, *, keep_last: int, make_store: MakeStore, state_at: MakeState
) -> list[str]:
    """What does not hold when a new process starts on `disk` and goes on; empty is good.

    `disk` is used up: the process selects twice and saves the next step.
    """
    found: list[str] = []
    try:
        if not oracle.rejects:
            found += _pointer_leads_nowhere(disk)
        first = _selected(make_store(disk, keep_last=keep_last))
        if not oracle.allows(first):
            found.append(f"selected {first}: {oracle}")
        store = make_store(disk, keep_last=keep_last)
        if _selected(store) != first:
            found.append("selecting twice gives two answers")
        found += _quarantine_is_wrong(disk, oracle)
        step = first[0] + 2 if first else 2
        state = state_at(step)
        store.save(state)
        found += _junk(disk, keep_last)
        found += _pointer_leads_nowhere(disk)
        pointer = Pointer.from_bytes(disk.content(layout.POINTER))
        if (pointer.step, pointer.state_digest) != (step, state_digest(state)):
            found.append(f"after the next save the pointer names step {pointer.step}")
    except Exception as error:  # whatever it is, a run that can go on stands still
        found.append(f"{type(error).__name__}: {error}; {oracle}")
    return found


def _selected(store: CheckpointStore) -> Saved | None:
    checkpoint = store.select()
    return checkpoint and (checkpoint.state["step"], state_digest(checkpoint.state))


def _pointer_leads_nowhere(disk: Place) -> list[str]:
    """Whoever follows the pointer finds a whole checkpoint, where nothing was damaged."""
    image = disk.image()
    if layout.POINTER not in image:
        return []
    pointer = Pointer.from_bytes(image[layout.POINTER])
    manifest = image.get(layout.manifest_name(pointer.step), b"")
    payload = image.get(pointer.file, b"")
    if f"xxh3_128:{xxhash.xxh3_128_hexdigest(payload)}" != pointer.digest:
        return [f"the pointer names step {pointer.step}, whose payload is not what was saved"]
    if Manifest.from_file(manifest, pointer.step).pointer() != pointer:
        return [f"the pointer names step {pointer.step}, whose manifest is another"]
    return []


def _quarantine_is_wrong(storage: Place, oracle: Oracle) -> list[str]:
    """Every rejected file is kept and has its reason; a fault that damages nothing rejects none."""
    found = []
    names = set(storage.list(layout.QUARANTINE))
    files = {name for name in names if not name.endswith(REASON_SUFFIX)}
    reasons = {name.removesuffix(REASON_SUFFIX) for name in names - files}
    begun_anew = {entry.file for entry in quarantined(storage) if entry.reason == CUT_SHORT}
    files -= {name for name in files if f"{layout.QUARANTINE}/{name}" in begun_anew}
    reasons -= {name for name in reasons if f"{layout.QUARANTINE}/{name}" in begun_anew}
    # A move that was cut short leaves a reason, which the next one of that name writes anew.
    if files - reasons or len(reasons - files) > 2:
        found.append(f"in quarantine: files {sorted(files)}, reasons of {sorted(reasons)}")
    if files and not oracle.rejects:
        found.append(f"nothing was damaged, but in quarantine are {sorted(files)}")
    if missing := oracle.damaged - set(storage.image().values()):
        found.append(f"{len(missing)} damaged files were not kept")
    return found


def _junk(storage: Storage, keep_last: int) -> list[str]:
    """After a save nothing is left but the pointer and `keep_last` whole checkpoints."""
    names = set(storage.list())
    manifests = {name for name in names if name.endswith(".json")} - {layout.POINTER}
    payloads = {name.replace(".json", ".pt") for name in manifests}
    found = [f"{name} is left" for name in sorted(names - manifests - payloads - {layout.POINTER})]
    found += [f"{name} is missing" for name in sorted(payloads - names)]
    if len(manifests) > keep_last + 1:
        found.append(f"{len(manifests)} checkpoints are kept, {keep_last} were asked for")
    found += [f"{n} is left" for n in storage.list(layout.QUARANTINE) if is_temporary(n)]
    return found
