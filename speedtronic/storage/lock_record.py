"""Reads and writes the record in a lock that identifies the process holding it."""

import json
import os
import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedtronic.errors import RunLockedError

Record = dict[str, Any]


def new_record() -> Record:
    """Return a record of this process, with a token that no other call returns."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "pid": pid,
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "token": secrets.token_hex(16),
        "machine": _machine(),
        "started": _started(pid),
    }


def to_bytes(record: Record) -> bytes:
    """Return the content of a lock file for a record."""
    return (json.dumps(record) + "\n").encode()


def from_bytes(content: bytes) -> Record:
    """Return the record in the content of a lock file; empty if it holds none."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def describe_owner(record: Record) -> str:
    """Describe the process of a record, for a message."""
    if "pid" not in record:
        return "another process"
    return f"pid {record.get('pid')} on {record.get('host')} since {record.get('since')}"


def has_ended(record: Record) -> bool:
    """Whether the process of `record` has certainly ended; False if that is unknown.

    It is known only for processes of this boot of this machine, in the same PID namespace.
    """
    pid, machine = record.get("pid"), _machine()
    if not machine or record.get("machine") != machine or type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it exists, and belongs to another user
        pass
    started = _started(pid)
    return bool(started) and started != record.get("started")  # its pid was reused


def lock_lost_error(place: str, record: Record) -> RunLockedError:
    """Return the error for a process whose lock was taken over or removed."""
    now = f"is held by {describe_owner(record)} now" if record else "was removed"
    return RunLockedError(
        f"the lock of {place} {now}: this process was thought to be gone, and another may go on "
        "with the run. It saves nothing more; what is there is the other's"
    )


def _machine() -> str:
    """Identify the boot of this machine and the PID namespace; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return when a process started, in ticks since the boot; empty if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
