"""When there is no good checkpoint: whether that is a fresh start, or something was lost."""

from collections.abc import Collection

from speedtronic.checkpoint import layout, outline
from speedtronic.checkpoint.storage import FILE, Storage
from speedtronic.checkpoint.verify import Candidate, PointerFinding
from speedtronic.errors import (
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
)


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
        ours = "format_version" in outline.read(storage, name)
    except (CorruptError, StorageError):
        ours = False
    if not ours:
        raise LegacyStoreError(
            f"{storage.root}/{name} has no manifest and is not of today's format; reading files "
            "of the older format needs --trust-legacy"
        )
