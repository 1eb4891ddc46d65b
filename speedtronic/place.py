"""Where a run lives: `run.json` in its output directory, so that a copy can tell it is one."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedtronic.errors import OutputDirError

RUN_JSON = "run.json"


def record_place(directory: Path, run_id: str) -> None:
    """Write whose directory this is, and where it is, unless that is what stands there.

    A crash leaves the file as it was or as it is now.

    Raises:
        OutputDirError: it cannot be written.
    """
    path = directory / RUN_JSON
    try:
        here = {"run_id": run_id, **_place(directory)}
        former = read_place(directory)
        if {key: former.get(key) for key in here} == here:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        temporary = path.with_name(f".{RUN_JSON}.tmp")
        temporary.write_text(json.dumps({**here, "recorded_at": now}, indent=2) + "\n", "utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputDirError(f"cannot write {path}: {error.strerror}") from error


def read_place(directory: Path) -> dict[str, Any]:
    """What `run.json` says; empty where there is none, or none that can be read."""
    try:
        record = json.loads((directory / RUN_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def displacement(directory: Path) -> str:
    """How this directory differs from the one that the run was last trained in; empty if it does
    not, or if nothing was recorded."""
    stored = read_place(directory)
    if not stored:
        return ""
    here = _place(directory)
    if stored.get("path") != here["path"]:
        return f"copied or moved from {stored.get('path')} on {stored.get('host')}"
    if stored.get("inode") != here["inode"]:
        return "a copy of the directory that had this path before"
    if stored.get("host") == here["host"] and stored.get("file_system") != here["file_system"]:
        return "on another file system than before"
    return ""


def _place(directory: Path) -> dict[str, Any]:
    # A device's number is another after a reboot; the id of its file system mostly is not.
    return {
        "path": str(directory.resolve()),
        "host": socket.gethostname(),
        "inode": directory.stat().st_ino,
        "file_system": f"{os.statvfs(directory).f_fsid:x}",
    }
