"""Move rejected files to `quarantine/`, each with its reason beside it. None is ever deleted."""

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from speedtronic.checkpoint import layout, reading
from speedtronic.checkpoint.records import Manifest, Pointer
from speedtronic.errors import CheckpointError, CorruptError, StorageError
from speedtronic.storage.base import Storage, publish_bytes, read_record

REASON_SUFFIX = ".reason.json"
# In the reason of intact files that were moved because a save of their step replaces them.
MADE_WAY = "made way"


def quarantine(storage: Storage, names: list[str], reason: str) -> list[str]:
    """Move files to `quarantine/`, writing `<file>.reason.json` beside each first.

    Manifests go last. A crash between two moves then leaves a manifest alone, which is rejected
    and moved again; a payload alone would pass for an unfinished save, and be deleted one day.

    Returns:
        Their new names.
    """
    storage.make_folder(layout.QUARANTINE)
    moved = []
    for name in sorted(names, key=lambda name: name.endswith(".json")):
        target = _free_name(storage, name)
        record = {
            "file": name,
            "reason": reason,
            "quarantined_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
        publish_bytes(storage, f"{target}{REASON_SUFFIX}", content)
        storage.sync_folder(layout.QUARANTINE)  # no power loss moves the file and not its reason
        storage.rename(name, target)
        storage.sync_folder(layout.QUARANTINE)
        storage.sync_folder()
        moved.append(target)
    return moved


def restore_displaced(storage: Storage, pointer: Pointer) -> None:
    """Move back the checkpoint that `pointer` names, if an interrupted save had quarantined it.

    That save was to replace it with another state of the same step. Only intact files are moved
    back; damaged ones stay in quarantine. After a crash the next call does the rest.
    """
    payload, manifest = layout.payload_name(pointer.step), layout.manifest_name(pointer.step)
    missing = {name for name in (payload, manifest) if not storage.exists(name)}
    if not missing:
        return
    found = {name: _made_way(storage, name, pointer) for name in (payload, manifest)}
    # A payload that exists without its manifest may belong to the interrupted save.
    moves = {name: old for name, old in found.items() if old and (name in missing | {payload})}
    if not missing <= moves.keys():
        return
    for name, old in moves.items():
        storage.rename(f"{layout.QUARANTINE}/{old}", name)
        storage.sync_folder()
        storage.delete(f"{layout.QUARANTINE}/{old}{REASON_SUFFIX}")


def _made_way(storage: Storage, name: str, pointer: Pointer) -> str | None:
    """Find the file in quarantine that is the payload or manifest `name` which `pointer` names.

    None if none is, byte for byte.
    """
    stem, _, suffix = name.partition(".")
    for found in storage.list(layout.QUARANTINE):
        if not found.startswith(f"{stem}.") or not found.endswith(f".{suffix}"):
            continue
        if found.endswith(REASON_SUFFIX) or MADE_WAY not in _reason(storage, found + REASON_SUFFIX):
            continue
        path = f"{layout.QUARANTINE}/{found}"
        with suppress(CorruptError):
            if suffix == "pt":
                _check_payload(storage, path, pointer)
                return found
            data = read_record(storage, path)
            if Manifest.from_file(data, pointer.step).pointer() == pointer:
                return found
    return None


def _check_payload(storage: Storage, path: str, pointer: Pointer) -> None:
    """Verify that a file is the payload that `pointer` names.

    Raises:
        CorruptError: it is not.
        StorageError: the machine could not read it.
    """
    size = storage.size(path)
    with storage.open(path) as file:
        try:
            reading.verify_bytes(file, size, pointer.digest)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {storage.root}/{path}: {error.strerror}") from error


@dataclass(frozen=True)
class Quarantined:
    """A rejected file, by its name relative to the root, and why it was rejected."""

    file: str
    reason: str


def quarantined(storage: Storage) -> list[Quarantined]:
    """List the files in quarantine that have a reason beside them, sorted by name; reads only."""
    folder = layout.QUARANTINE
    names = set(storage.list(folder))
    notes = sorted(f"{name}{REASON_SUFFIX}" for name in names if f"{name}{REASON_SUFFIX}" in names)
    return [
        Quarantined(f"{folder}/{note.removesuffix(REASON_SUFFIX)}", _reason(storage, note))
        for note in notes
    ]


def _reason(storage: Storage, note: str) -> str:
    try:
        return str(json.loads(read_record(storage, f"{layout.QUARANTINE}/{note}"))["reason"])
    except (CheckpointError, ValueError, LookupError, TypeError, RecursionError):
        return f"{note} cannot be read"


def _free_name(storage: Storage, name: str) -> str:
    folder, path = layout.QUARANTINE, PurePosixPath(name)
    target, number = f"{folder}/{name}", 1
    while storage.exists(target):
        number += 1
        target = f"{folder}/{path.stem}.{number}{path.suffix}"
    return target
