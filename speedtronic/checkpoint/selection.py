"""Decide what follows when checkpoints are not good: refuse, quarantine, or start at step 0."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.candidates import Candidate, PointerFinding, candidates
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.records import Manifest
from speedtronic.checkpoint.verdicts import Verdict, walk
from speedtronic.errors import (
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
)
from speedtronic.storage.base import Storage
from speedtronic.storage.names import is_temporary

logger = logging.getLogger(__name__)

CUT_SHORT = "no manifest: a first save that was cut short; the run began anew at step 0"


def refuse_if_anything_was_lost(
    storage: Storage,
    found: PointerFinding,
    rejected: Sequence[Verdict[Any]],
    first_saves: Collection[int],
) -> None:
    """Raise unless nothing was ever committed here, so that a start at step 0 loses nothing.

    Args:
        found: what `latest.json` says.
        rejected: the verdicts of all candidates, none of them `verified`.
        first_saves: the steps at which a run's very first save can be; a payload alone at one of
            them is left of an interrupted first save.

    Raises:
        NoValidCheckpointError: names each file with its reason.
        LegacyStoreError: payloads of the older format.
    """
    corrupt = [verdict for verdict in rejected if verdict.status == "corrupt"]
    uncommitted = [v.candidate for v in rejected if v.status == "uncommitted"]
    if corrupt:
        lines = [f"  {v.step}: {', '.join(v.candidate.files)}: {v.reason}" for v in corrupt]
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
        num_foreign = sum(verdict.status == "foreign" for verdict in rejected)
        others = f" ({num_foreign} of another run)" if num_foreign else ""
        raise NoValidCheckpointError(
            f"{storage.root}/{layout.POINTER} {said}, but no checkpoint of its run is "
            f"there{others}. Restore it from a copy, or train into another directory."
        )
    _refuse_without_manifests(storage, uncommitted, first_saves)


def _refuse_without_manifests(
    storage: Storage, uncommitted: list[Candidate], first_saves: Collection[int]
) -> None:
    """Raise unless at most one payload is there, where an interrupted first save can have left it.

    More payloads than that were somebody's checkpoints, whose manifests were lost.

    Raises:
        NoValidCheckpointError: names the payloads.
    """
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
    """Raise if a payload without a manifest is of the older format.

    An interrupted first save leaves one of today's format.

    Raises:
        LegacyStoreError: names the payload.
    """
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


def quarantine_rejected(
    storage: Storage,
    rejected: Sequence[Verdict[Any]],
    pointer: PointerFinding,
    selected: Manifest,
) -> None:
    """Quarantine the damaged checkpoints newer than the selected one, and a damaged pointer.

    Args:
        rejected: the verdicts of the newer candidates; only the `corrupt` ones are moved.
        pointer: what `latest.json` says.
        selected: for the log message.
    """
    for verdict in rejected:
        if verdict.status != "corrupt":
            continue
        moved = quarantine(storage, verdict.candidate.files, verdict.reason)
        logger.warning(
            "checkpoint of step %d is damaged: %s: %s; moved to %s; going on from step %d "
            "(verified)",
            verdict.step,
            f"{storage.root}/{layout.payload_name(verdict.step)}",
            verdict.reason,
            ", ".join(moved),
            selected.step,
        )
    if pointer.problem:
        quarantine(storage, [layout.POINTER], pointer.problem)
        logger.warning("%s/%s: %s; repaired", storage.root, layout.POINTER, pointer.problem)


def quarantine_poison(storage: Storage, step: int, reason: str) -> None:
    """Quarantine a checkpoint, even an intact one, if an older one of its run is intact.

    Raises:
        NoValidCheckpointError: there is no such older one; nothing was moved.
        StorageError, UnsupportedFormatError: an older one could not be judged; nothing was moved.
    """
    found = list(candidates(storage))
    poison = next((c for c in found if c.step == step and c.committed), None)
    if poison is None:
        return
    older = [candidate for candidate in found if candidate.step < step]
    if not older or not _any_intact(older, poison.manifest.run_id):
        raise NoValidCheckpointError(
            f"{storage.root}/{layout.payload_name(step)} is to be set aside ({reason}), but there "
            "is no good checkpoint before it; nothing was moved"
        )
    moved = quarantine(storage, poison.files, reason)
    logger.warning("step %d: %s; moved to %s", step, reason, ", ".join(moved))


def _any_intact(found: Sequence[Candidate], run_id: str) -> bool:
    """Whether the bytes of one of these checkpoints are what was saved; none is loaded."""
    for verdict in walk(found, run_id, Candidate.check):
        if verdict.status == "unverified":
            verdict.raise_if_blocking()
        if verdict.status == "verified":
            return True
    return False


def remove_temporaries(storage: Storage) -> None:
    """Delete the temporary files of writers that died."""
    for name in storage.list():
        if is_temporary(name):
            storage.delete(name)
