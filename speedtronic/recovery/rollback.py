"""Go back to an older checkpoint on purpose: newer ones go to quarantine, none is deleted."""

from speedtronic.checkpoint import Pointer, layout, open_lock
from speedtronic.checkpoint.candidates import candidates
from speedtronic.checkpoint.loading import load_step
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.storage.base import Storage, publish_bytes

REASON = "rolled back"


def roll_back(storage: Storage, step: int) -> tuple[Pointer, list[str]]:
    """Move every checkpoint after `step` to quarantine, and set the pointer to `step`.

    The next resume removes the metrics after it. Checkpoints of other runs stay where they are.
    After a crash the same call does the rest.

    Returns:
        The pointer now on disk, and the new names of the files that were moved.

    Raises:
        NoValidCheckpointError: `step` does not exist or is not good, or a newer one is a link or
            the like; nothing was changed.
        RunLockedError: the run is being trained; nothing was changed.
    """
    lock = open_lock(storage)
    lock.acquire()
    try:
        manifest = load_step(storage, step).manifest
        newer = [
            candidate
            for candidate in candidates(storage)
            if candidate.step > step and not candidate.is_foreign_to(manifest.run_id)
        ]
        for candidate in newer:
            candidate.refuse_irregular()
        moved: list[str] = []
        for candidate in newer:
            moved += quarantine(storage, candidate.files, f"{REASON} to step {step}")
        publish_bytes(storage, layout.POINTER, manifest.pointer().to_bytes())
        return manifest.pointer(), moved
    finally:
        lock.release()
