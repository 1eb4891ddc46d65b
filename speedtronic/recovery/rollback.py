"""Going back to an older checkpoint on purpose. Nothing is deleted."""

from speedtronic.checkpoint import CheckpointStore, Pointer, layout, open_lock
from speedtronic.checkpoint.quarantine import quarantine
from speedtronic.checkpoint.storage import Storage, publish
from speedtronic.checkpoint.verify import candidates
from speedtronic.errors import CorruptError, UnsupportedFormatError

REASON = "rolled back"


def roll_back(storage: Storage, step: int) -> tuple[Pointer, list[str]]:
    """Move every checkpoint after `step` to quarantine, and the pointer to it.

    The metrics after it go when the run is resumed. Of another run's checkpoints none is moved.
    A crash on the way leaves a directory in which the same call goes on.

    Returns:
        The pointer now on disk, and the new names of the files that were moved.

    Raises:
        NoValidCheckpointError: `step` is not there or not good; nothing was changed.
        RunLockedError: the run is being trained; nothing was changed.
    """
    lock = open_lock(storage)
    lock.acquire()
    try:
        manifest = CheckpointStore(storage, keep_last=None).load_step(step).manifest
        moved: list[str] = []
        for candidate in candidates(storage):
            if candidate.step <= step:
                break
            try:
                foreign = candidate.committed and candidate.manifest.run_id != manifest.run_id
            except (CorruptError, UnsupportedFormatError):
                foreign = False
            if not foreign:
                reason = f"{REASON} to step {step}"
                moved += quarantine(storage, candidate.files, reason)
        content = manifest.pointer().to_bytes()
        publish(storage, layout.POINTER, lambda file: file.write(content))
        return manifest.pointer(), moved
    finally:
        lock.release()
