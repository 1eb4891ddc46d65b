"""Where a run lives: `run.json` in its output directory, so that a copy can tell it is one."""

import logging
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedtronic.errors import CorruptError
from speedtronic.run_directory import disk_errors, read_json, replace_text, strict_json

RUN_JSON = "run.json"
LIMIT_BYTES = 2**20

logger = logging.getLogger(__name__)


def record_place(directory: Path, run_id: str, checkpoints: str = "checkpoints") -> None:
    """Write whose directory this is, and where it is, unless that is what stands there.

    A crash leaves the file as it was or as it is now.

    Args:
        directory: the run's output directory.
        run_id: of the run.
        checkpoints: path or URL of its checkpoints, as configured, without secrets.

    Raises:
        OutputDirError, StorageError: it cannot be written.
    """
    path = directory / RUN_JSON
    with disk_errors(f"cannot write {path}"):
        here = {"run_id": run_id, "checkpoints": checkpoints, **_place(directory)}
    former: dict[str, Any] = {}
    try:
        former = read_json(path, LIMIT_BYTES)
    except FileNotFoundError:
        pass
    except CorruptError as error:
        logger.warning("%s; it is written anew", error)
    if {key: former.get(key) for key in here} == here:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    replace_text(path, strict_json({**here, "recorded_at": now}, indent=2) + "\n")


def read_place(directory: Path) -> dict[str, Any]:
    """What `run.json` says; empty where there is none, or a damaged one.

    Raises:
        StorageError, OutputDirError: it cannot be read, which says nothing of what is in it.
    """
    try:
        return read_json(directory / RUN_JSON, LIMIT_BYTES)
    except (FileNotFoundError, CorruptError):
        return {}


def place_problem(directory: Path) -> str:
    """Why `run.json` says nothing though it is there; empty otherwise. Raises as `read_place`."""
    try:
        read_json(directory / RUN_JSON, LIMIT_BYTES)
    except FileNotFoundError:
        return ""
    except CorruptError as error:
        return str(error)
    return ""


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
