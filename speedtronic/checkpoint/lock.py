"""One writer per run: a lock that the operating system drops when its holder dies.

An flock on `.lock`, so a dead process never blocks. The file's content names the holder for the
message of whoever is refused; it says nothing about whether the lock is held.
"""

import contextlib
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from speedtronic.checkpoint import layout
from speedtronic.errors import OutputDirError, RunLockedError


class RunLock:
    """The lock of the checkpoint directory `root`; held from `acquire` until `release` or death.

    Forked children (loader workers) do not keep it: filelock closes its descriptor in them.
    """

    def __init__(self, root: str) -> None:
        self._path = Path(root) / layout.LOCK
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Take the lock or fail at once.

        Raises:
            RunLockedError: another process holds it; the message names host and pid.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunLockedError(
                f"{self._path.parent} is being trained by {_describe(holder(self._path.parent))}; "
                "wait for it to end, or stop it"
            ) from None
        except OSError as error:
            raise OutputDirError(f"cannot lock {self._path}: {error.strerror}") from error
        record = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._path.write_text(json.dumps(record) + "\n")

    def release(self) -> None:
        """Give the lock up; the file stays."""
        self._lock.release()


def holder(root: str | Path) -> dict[str, object]:
    """Who last took the lock of `root`: host, pid, since; empty when unknown."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((Path(root) / layout.LOCK).read_text())
        if isinstance(record, dict):
            return record
    return {}


def _describe(record: dict[str, object]) -> str:
    if not record:
        return "another process"
    return f"pid {record.get('pid')} on {record.get('host')} since {record.get('since')}"
