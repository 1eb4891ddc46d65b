"""Whether a run is being trained is seen without touching its lock."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from speedtronic.checkpoint import RunLock, open_lock, open_storage
from speedtronic.storage import lock_owner as trained
from speedtronic.storage.lock_owner import lock_owner
from tests.tiny import tree

HOLD = (
    "import sys; from speedtronic.checkpoint import RunLock; lock = RunLock(sys.argv[1]); "
    "lock.acquire(); print('held', flush=True); sys.stdin.read()"
)


def test_a_lock_held_here(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    assert lock_owner(storage) == ""
    lock = RunLock(str(tmp_path))
    lock.acquire()
    before = tree(tmp_path)
    assert lock_owner(storage).startswith(f"pid {os.getpid()} on ")
    assert tree(tmp_path) == before
    lock.release()
    assert lock_owner(storage) == ""


def test_a_lock_held_by_another_process_until_it_is_killed(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert lock_owner(storage).startswith(f"pid {holder.pid} on ")
        holder.kill()
    assert lock_owner(storage) == ""


def test_another_file_with_a_lock_is_not_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    lock = RunLock(str(tmp_path / "a"))
    lock.acquire()
    (tmp_path / "b" / ".lock").write_bytes((tmp_path / "a" / ".lock").read_bytes())
    assert lock_owner(open_storage(str(tmp_path / "b"))) == ""
    lock.release()


def test_without_a_table_of_locks_a_living_holder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "LOCKS", tmp_path / "missing")
    storage = open_storage(str(tmp_path))
    for pid, host, held in [
        (os.getpid(), socket.gethostname(), True),
        (os.getpid(), "elsewhere", False),
        (2**22 + 1, socket.gethostname(), False),
        ("x", socket.gethostname(), False),
    ]:
        (tmp_path / ".lock").write_text(json.dumps({"pid": pid, "host": host, "since": "today"}))
        assert bool(lock_owner(storage)) == held, (pid, host)


def test_a_lease_in_an_object_store_until_it_ends() -> None:
    storage = open_storage("memory://trained/checkpoints")
    assert lock_owner(storage) == ""
    lease = open_lock(storage)
    lease.acquire()
    assert lock_owner(storage).startswith(f"pid {os.getpid()} on ")
    lease.release()
    assert lock_owner(storage) == ""
