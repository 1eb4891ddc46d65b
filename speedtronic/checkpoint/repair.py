"""Moving out of the way what a run cannot go on from. The caller holds the run's lock."""

import logging

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.records import Manifest
from speedtronic.checkpoint.storage import Storage
from speedtronic.checkpoint.verify import Candidate, PointerFinding, candidates
from speedtronic.errors import CorruptError, NoValidCheckpointError

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
        if layout.is_temporary(name):
            storage.delete(name)


def _is_good(candidate: Candidate, run_id: str) -> bool:
    try:
        if not candidate.committed or candidate.manifest.run_id != run_id:
            return False
        candidate.check()
    except CorruptError:
        return False
    return True
