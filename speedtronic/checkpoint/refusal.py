"""When there is no good checkpoint: whether that is a fresh start, or something was lost."""

from speedtronic.checkpoint import codec, layout
from speedtronic.checkpoint.storage import Storage, read_bytes
from speedtronic.checkpoint.verify import Candidate, PointerFinding
from speedtronic.errors import (
    CorruptError,
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
)


def refuse_if_anything_was_lost(
    storage: Storage,
    found: PointerFinding,
    rejected: list[tuple[Candidate, str]],
    uncommitted: list[Candidate],
    foreign: int,
) -> None:
    """Return only where nothing was ever committed, so that a start at step 0 loses nothing.

    Args:
        found: what `latest.json` says.
        rejected: candidates that do not verify, each with the reason.
        uncommitted: payloads without a manifest.
        foreign: number of checkpoints of other runs.

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


def _refuse_legacy(storage: Storage, candidate: Candidate) -> None:
    """A first save cut short leaves one of our payloads alone, and that is no history."""
    name = layout.payload_name(candidate.step)
    try:
        ours = "format_version" in codec.decode(read_bytes(storage, name))
    except (CorruptError, StorageError):
        ours = False
    if not ours:
        raise LegacyStoreError(
            f"{storage.root}/{name} has no manifest and is not of today's format; reading files "
            "of the older format needs --trust-legacy"
        )
