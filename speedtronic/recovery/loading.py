"""The newest good checkpoint of a directory, or one of its steps, in memory. Reads only."""

from pathlib import Path
from typing import Any

from speedtronic.checkpoint import Checkpoint, CheckpointStore, codec
from speedtronic.checkpoint.candidates import candidates, foreign_to, read_pointer
from speedtronic.checkpoint.selection import refuse_irregular
from speedtronic.errors import CorruptError, NoValidCheckpointError
from speedtronic.run_directory import find_store
from speedtronic.storage.base import Storage


def load_newest(storage: Storage, step: int | None = None) -> Checkpoint:
    """What a resume would take, without mending anything; or the checkpoint of `step`.

    Raises:
        NoValidCheckpointError: there is none, or that step is not good.
    """
    store = CheckpointStore(storage, keep_last=None)
    if step is not None:
        return store.load_step(step)
    pointer = read_pointer(storage).pointer
    reasons = []
    for candidate in candidates(storage):
        if not foreign_to(pointer.run_id if pointer else None, candidate):
            refuse_irregular(storage, candidate)
        if not candidate.committed:
            continue
        try:
            if pointer is not None and candidate.manifest.run_id != pointer.run_id:
                continue
            return Checkpoint(candidate.manifest, candidate.load())
        except CorruptError as error:
            reasons.append(f"step {candidate.step}: {error}")
    raise NoValidCheckpointError("\n  ".join([f"{storage.root} has no good checkpoint", *reasons]))


def load_state(place: str) -> tuple[str, dict[str, Any]]:
    """The state in a payload's file, or in the newest good checkpoint of a run.

    Returns:
        What it is of, for people, and the state.

    Raises:
        UsageError: there is no such file or directory.
        CheckpointError: it holds no good checkpoint.
    """
    path = Path(place)
    if path.is_file():
        state = codec.decode_payload(path.read_bytes())
    else:
        state = load_newest(find_store(place)).state
    return f"{place} at step {state.get('step')}", state
