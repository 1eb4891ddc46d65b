"""Pins: checkpoints that retention must not delete, whoever holds the run's lock.

A pin is a file of its own, `step_000000000004.pin`, so that one process may pin while another
trains, and so that no crash can leave half a list.
"""

import json
from datetime import UTC, datetime

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.storage import Storage, publish, read_record
from speedtronic.errors import CheckpointError


def pin(storage: Storage, step: int, reason: str) -> None:
    """Keep the checkpoint of `step` until `unpin`; the reason is for people. Durable on return."""
    record = {"reason": reason, "pinned_at": datetime.now(UTC).isoformat(timespec="seconds")}
    content = (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
    publish(storage, layout.pin_name(step), lambda file: file.write(content))


def unpin(storage: Storage, step: int) -> None:
    """Let retention decide again; a step that is not pinned is no error."""
    storage.delete(layout.pin_name(step))
    storage.sync_folder()


def pinned(storage: Storage) -> dict[int, str]:
    """The pinned steps with the reason of each."""
    return {step: _reason(storage, step) for step in layout.pinned_steps(storage.entries())}


def _reason(storage: Storage, step: int) -> str:
    """A pin holds whatever its file says."""
    try:
        return str(json.loads(read_record(storage, layout.pin_name(step)))["reason"])
    except (CheckpointError, ValueError, LookupError, TypeError, RecursionError):
        return "unknown"
