"""Moving rejected files out of the way, each with its reason beside it. Nothing is ever deleted."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.storage import Storage, publish, read_bytes
from speedtronic.errors import StorageError

REASON_SUFFIX = ".reason.json"


def quarantine(storage: Storage, names: list[str], reason: str) -> list[str]:
    """Move files to `quarantine/`, writing `<file>.reason.json` beside each first.

    A crash between two moves leaves the rest where they were: a payload whose manifest has gone is
    uncommitted, so give manifests first.

    Returns:
        Their new names.
    """
    storage.make_folder(layout.QUARANTINE)
    moved = []
    for name in names:
        target = _free_name(storage, name)
        record = {
            "file": name,
            "reason": reason,
            "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
        publish(storage, f"{target}{REASON_SUFFIX}", lambda file, c=content: file.write(c))  # type: ignore[misc]
        storage.rename(name, target)
        moved.append(target)
    storage.sync_folder(layout.QUARANTINE)
    storage.sync_folder()
    return moved


@dataclass(frozen=True)
class Quarantined:
    """A rejected file, by its name relative to the root, and why it was rejected."""

    file: str
    reason: str


def quarantined(storage: Storage) -> list[Quarantined]:
    """What lies in quarantine with a reason beside it, by name; reads only."""
    folder = layout.QUARANTINE
    notes = sorted(name for name in storage.list(folder) if name.endswith(REASON_SUFFIX))
    return [
        Quarantined(f"{folder}/{note.removesuffix(REASON_SUFFIX)}", _reason(storage, note))
        for note in notes
    ]


def _reason(storage: Storage, note: str) -> str:
    try:
        return str(json.loads(read_bytes(storage, f"{layout.QUARANTINE}/{note}"))["reason"])
    except (StorageError, ValueError, LookupError, TypeError, RecursionError):
        return f"{note} cannot be read"


def _free_name(storage: Storage, name: str) -> str:
    folder, path = layout.QUARANTINE, PurePosixPath(name)
    target, number = f"{folder}/{name}", 1
    while storage.exists(target):
        number += 1
        target = f"{folder}/{path.stem}.{number}{path.suffix}"
    return target
