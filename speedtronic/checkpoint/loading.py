"""Load the newest good checkpoint of a directory, or that of one step. Nothing is written."""

from dataclasses import dataclass
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.candidates import Candidate, candidates, read_pointer
from speedtronic.checkpoint.records import Manifest
from speedtronic.checkpoint.verdicts import Verdict, judge, walk
from speedtronic.errors import NoValidCheckpointError
from speedtronic.storage.base import Storage


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory: its manifest, and the state with tensors on the CPU."""

    manifest: Manifest
    state: dict[str, Any]


@dataclass(frozen=True)
class Search:
    """The newest good checkpoint, and why each newer one was passed over.

    Attributes:
        checkpoint: None if none is good.
        rejected: verdicts of those passed over, newest first.
    """

    checkpoint: Checkpoint | None
    rejected: list[Verdict[dict[str, Any]]]


def search_newest(storage: Storage, run_id: str | None) -> Search:
    """Load the newest good checkpoint of a run; nothing is changed.

    Args:
        run_id: None accepts any run.

    Raises:
        NoValidCheckpointError: a newer one is a link, a folder or the like.
        StorageError, UnsupportedFormatError: a newer one could not be judged.
    """
    rejected: list[Verdict[dict[str, Any]]] = []
    for verdict in walk(candidates(storage), run_id, Candidate.load):
        verdict.raise_if_blocking()
        if verdict.loaded is not None:
            return Search(Checkpoint(verdict.candidate.manifest, verdict.loaded), rejected)
        rejected.append(verdict)
    return Search(None, rejected)


def load_newest(storage: Storage) -> Checkpoint:
    """Load the checkpoint that a resume would take; nothing is repaired.

    Raises:
        NoValidCheckpointError: none is good; names each damaged one with its reason.
        StorageError, UnsupportedFormatError: as `search_newest`.
    """
    pointer = read_pointer(storage).pointer
    search = search_newest(storage, pointer.run_id if pointer else None)
    if search.checkpoint is not None:
        return search.checkpoint
    damaged = [f"step {v.step}: {v.reason}" for v in search.rejected if v.status == "corrupt"]
    raise NoValidCheckpointError("\n  ".join([f"{storage.root} has no good checkpoint", *damaged]))


def load_step(storage: Storage, step: int) -> Checkpoint:
    """Load the checkpoint of one step, of whichever run; nothing is changed.

    Raises:
        NoValidCheckpointError: it does not exist or is not good; names the steps that exist.
        StorageError, UnsupportedFormatError: it could not be judged.
    """
    found = list(candidates(storage))
    candidate = next((c for c in found if c.step == step and c.committed), None)
    if candidate is None:
        steps = ", ".join(str(c.step) for c in reversed(found) if c.committed) or "none"
        raise NoValidCheckpointError(
            f"{storage.root} has no checkpoint of step {step}; committed there: {steps}"
        )
    verdict = judge(candidate, None, Candidate.load)
    verdict.raise_if_blocking()
    if verdict.loaded is None:
        path = f"{storage.root}/{layout.payload_name(step)}"
        raise NoValidCheckpointError(f"{path}: {verdict.reason}") from verdict.error
    return Checkpoint(candidate.manifest, verdict.loaded)
