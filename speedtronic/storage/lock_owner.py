"""Finds the process that trains a run at the moment, without touching its lock.

Acquiring the lock to find out, however briefly, could make a run fail that starts just then.
"""

import os
import socket
from pathlib import Path

from speedtronic.errors import CheckpointError
from speedtronic.storage.base import Storage, read_record
from speedtronic.storage.lease import remaining_s
from speedtronic.storage.lock_record import Record, describe_owner, from_bytes, has_ended
from speedtronic.storage.names import LOCK
from speedtronic.storage.objects import ObjectStorage

LOCKS = Path("/proc/locks")


def lock_owner(storage: Storage) -> str:
    """Describe the process that holds the lock; empty if none can be seen to hold it.

    On a shared file system, a lock held in another container or on another machine is invisible.
    """
    record = _record(storage)
    if isinstance(storage, ObjectStorage):
        held = remaining_s(storage, record) > 0 and not has_ended(record)
    else:
        held = _is_flocked(Path(storage.root) / LOCK, record)
    return describe_owner(record) if held else ""


def _record(storage: Storage) -> Record:
    try:
        return from_bytes(read_record(storage, LOCK))
    except CheckpointError:
        return {}


def _is_flocked(path: Path, record: Record) -> bool:
    if not LOCKS.exists():  # not Linux: assume it is held while its last holder lives
        return record.get("host") == socket.gethostname() and not _is_gone(record.get("pid"))
    try:
        place = path.stat()
        table = LOCKS.read_text()
    except OSError:
        return False
    device = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}"
    for line in table.splitlines():
        _, kind, _, _, pid, where, *_ = line.replace("-> ", "").split()
        its_device, _, inode = where.rpartition(":")
        # Some file systems show their files under another device than the kernel has.
        is_it = its_device == device or pid == str(record.get("pid"))
        if kind == "FLOCK" and inode == str(place.st_ino) and is_it:
            return True
    return False


def _is_gone(pid: object) -> bool:
    if type(pid) is not int or pid <= 0:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is somebody else's
        pass
    return False
