"""Going back to an older checkpoint on purpose. Nothing is deleted."""

from speedtronic.checkpoint import CheckpointStore, Pointer, layout, open_lock
from speedtronic.checkpoint.candidates import candidates, foreign_to
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.selection import refuse_irregular
from speedtronic.storage.base import Storage, publish

REASON = "rolled back"


def roll_back(storage: Storage, step: int) -> tuple[Pointer, list[str]]:
    """Move every checkpoint after `step` to quarantine, and the pointer to it.

    The metrics after it go when the run is resumed. Of another run's checkpoints none is moved.
    A crash on the way leaves a directory in which the same call goes on.

    Returns:
        The pointer now on disk, and the new names of the files that were moved.

    Raises:
        NoValidCheckpointError: `step` is not there or not good, or a newer one is a link or the
            like; nothing was changed.
        RunLockedError: the run is being trained; nothing was changed.
    """
    lock = open_lock(storage)
    lock.acquire()
    try:
        manifest = CheckpointStore(storage, keep_last=None).load_step(step).manifest
        newer = [
            candidate
            for candidate in candidates(storage)
            if candidate.step > step and not foreign_to(manifest.run_id, candidate)
        ]
        for candidate in newer:
            refuse_irregular(storage, candidate)
        moved: list[str] = []
        for candidate in newer:
            moved += quarantine(storage, candidate.files, f"{REASON} to step {step}")
        content = manifest.pointer().to_bytes()
        publish(storage, layout.POINTER, lambda file: file.write(content))
        return manifest.pointer(), moved
    finally:
        lock.release()
