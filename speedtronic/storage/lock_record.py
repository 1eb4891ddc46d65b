"""Who holds a lock: the record that a process leaves in it, and what can be told from one."""

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
    """A record of this process, with a token that no other call returns."""
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
    """The content of a lock."""
    return (json.dumps(record) + "\n").encode()


def from_bytes(content: bytes) -> Record:
    """The record in the content of a lock; an empty one of anything else."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def describe_owner(record: Record) -> str:
    """The holder, for a message."""
    if "pid" not in record:
        return "another process"
    return f"pid {record.get('pid')} on {record.get('host')} since {record.get('since')}"


def has_ended(record: Record) -> bool:
    """Whether the process of `record` surely is no more; False also when that cannot be told.

    It can where it ran under this boot of this machine, among the same process ids.
    """
    pid, machine = record.get("pid"), _machine()
    if not machine or record.get("machine") != machine or type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it is somebody else's
        pass
    started = _started(pid)
    return bool(started) and started != record.get("started")  # its number was given anew


def lock_lost_error(place: str, record: Record) -> RunLockedError:
    """The error of a process whose lock is another's now, or gone."""
    now = f"is held by {describe_owner(record)} now" if record else "was removed"
    return RunLockedError(
        f"the lock of {place} {now}: this process was thought to be gone, and another may go on "
        "with the run. It saves nothing more; what is there is the other's"
    )


def _machine() -> str:
    """One boot of one machine, and one space of process ids in it; empty where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in ticks since the boot; empty where unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
