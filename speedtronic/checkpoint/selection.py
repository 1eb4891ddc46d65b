"""When there is no good checkpoint: whether that is a fresh start, or something was lost."""

import logging
from collections.abc import Collection

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.candidates import Candidate, PointerFinding, candidates
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.records import Manifest
from speedtronic.errors import (
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
)
from speedtronic.storage.base import FILE, Storage
from speedtronic.storage.names import is_temporary


def refuse_irregular(storage: Storage, candidate: Candidate) -> None:
    """Return if each file of a step is a regular one; what a link leads to may be anybody's work.

    Raises:
        NoValidCheckpointError: names what is none, and says what it is.
    """
    if candidate.irregular:
        raise NoValidCheckpointError(
            f"{irregular(storage, candidate)}; nothing was changed. {MEND}"
        )


def irregular(storage: Storage, candidate: Candidate) -> str:
    """What of a step's files is no regular file, in words."""
    found = [f"{storage.root}/{name} is {kind}" for name, kind in candidate.irregular.items()]
    return f"{'; '.join(found)}, expected {FILE}"


MEND = (
    "Put the files themselves in its place (`cp --dereference` copies what a link leads to), "
    "or train into another directory"
)


def refuse_if_anything_was_lost(
    storage: Storage,
    found: PointerFinding,
    rejected: list[tuple[Candidate, str]],
    uncommitted: list[Candidate],
    foreign: int,
    first_saves: Collection[int],
) -> None:
    """Return only where nothing was ever committed, so that a start at step 0 loses nothing.

    Args:
        found: what `latest.json` says.
        rejected: candidates that do not verify, each with the reason.
        uncommitted: payloads without a manifest.
        foreign: number of checkpoints of other runs.
        first_saves: the steps at which a run's very first save can be; a payload alone at one of
            them is what is left of a first save that was cut short.

    Raises:
        NoValidCheckpointError: names each file with its reason.
        LegacyStoreError: payloads of the older format.
    """
    if rejected:
        lines = [f"  {c.step}: {', '.join(c.files)}: {reason}" for c, reason in rejected]
        raise NoValidCheckpointError(
            f"no checkpoint in {storage.root} is good; nothing was changed:\n"
            + "\n".join(lines)
            + "\nRestore one of these files from a copy, or train into another directory."
        )
    if found.pointer is None:  # a pointer of the older format cannot be read either
        for candidate in uncommitted:
            _refuse_legacy(storage, candidate)
        if storage.list(layout.LEGACY):
            raise LegacyStoreError(
                f"{storage.root}/{layout.LEGACY} holds a run of the older format that was not "
                "taken up to the end; --trust-legacy does it"
            )
    if found.present:
        said = found.problem or f"names step {found.pointer and found.pointer.step}"
        others = f" ({foreign} of another run)" if foreign else ""
        raise NoValidCheckpointError(
            f"{storage.root}/{layout.POINTER} {said}, but no checkpoint of its run is "
            f"there{others}. Restore it from a copy, or train into another directory."
        )
    _refuse_without_manifests(storage, uncommitted, first_saves)


def _refuse_without_manifests(
    storage: Storage, uncommitted: list[Candidate], first_saves: Collection[int]
) -> None:
    """A first save cut short leaves one payload, and that is no history. More are somebody's."""
    steps = [candidate.step for candidate in uncommitted]
    if not steps or (len(steps) == 1 and steps[0] in first_saves):
        return
    names = ", ".join(layout.payload_name(step) for step in sorted(steps))
    raise NoValidCheckpointError(
        f"{storage.root} holds {names} without a manifest or {layout.POINTER}, which is not what a "
        "first save leaves that was cut short; nothing was changed. Copy the .json files that "
        "belong to them here too, or train into another directory"
    )


def _refuse_legacy(storage: Storage, candidate: Candidate) -> None:
    """A first save cut short leaves one of our payloads alone, and that is no history."""
    name = layout.payload_name(candidate.step)
    try:
        ours = "format_version" in outline.read_outline(storage, name)
    except (CorruptError, StorageError):
        ours = False
    if not ours:
        raise LegacyStoreError(
            f"{storage.root}/{name} has no manifest and is not of today's format; reading files "
            "of the older format needs --trust-legacy"
        )


logger = logging.getLogger(__name__)

CUT_SHORT = "no manifest: a first save that was cut short; the run began anew at step 0"


def set_aside_damaged(
    storage: Storage,
    rejected: list[tuple[Candidate, str]],
    pointer: PointerFinding,
    selected: Manifest,
) -> None:
    """Quarantine what was rejected on the way to the checkpoint that was selected.

    Args:
        rejected: with the reason of each.
        pointer: goes too if it has a problem.
        selected: for the message.
    """
    for candidate, reason in rejected:
        moved = quarantine(storage, candidate.files, reason)
        logger.warning(
            "checkpoint of step %d is damaged: %s: %s; moved to %s; going on from step %d "
            "(verified)",
            candidate.step,
            f"{storage.root}/{layout.payload_name(candidate.step)}",
            reason,
            ", ".join(moved),
            selected.step,
        )
    if pointer.problem:
        quarantine(storage, [layout.POINTER], pointer.problem)
        logger.warning("%s/%s: %s; repaired", storage.root, layout.POINTER, pointer.problem)


def set_aside_poison(storage: Storage, step: int, reason: str) -> None:
    """Quarantine a checkpoint, good as it may be, if there is a good one of its run before it.

    Raises:
        NoValidCheckpointError: there is none; nothing was moved.
    """
    found = list(candidates(storage))
    rejected = next((c for c in found if c.step == step and c.committed), None)
    if rejected is None:
        return
    if not any(c.step < step and _is_good(c, rejected.manifest.run_id) for c in found):
        raise NoValidCheckpointError(
            f"{storage.root}/{layout.payload_name(step)} is to be set aside ({reason}), but there "
            "is no good checkpoint before it; nothing was moved"
        )
    moved = quarantine(storage, rejected.files, reason)
    logger.warning("step %d: %s; moved to %s", step, reason, ", ".join(moved))


def remove_temporaries(storage: Storage) -> None:
    """Delete what writers that died have left."""
    for name in storage.list():
        if is_temporary(name):
            storage.delete(name)


def _is_good(candidate: Candidate, run_id: str) -> bool:
    try:
        if not candidate.committed or candidate.manifest.run_id != run_id:
            return False
        candidate.check()
    except CorruptError:
        return False
    return True
