"""One writer per run, with real processes: who is refused, and when the lock is free again."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from speedtronic.checkpoint import RunLock
from speedtronic.errors import OutputDirError, RunLockedError, StorageError
from speedtronic.storage.lock import read_lock_record
from tests.waiting import Processes

HOLDER = """
import os, signal, subprocess, sys
from speedtronic.checkpoint import RunLock
held = RunLock(sys.argv[1])
held.acquire()
{then}
print(child, flush=True)
signal.pause()
"""

CHILDREN = {
    "none": "child = 0",
    "forked": """
child = os.fork()
if child == 0:
    signal.pause()
""",
    "forked after the lock was given up and taken again": """
held.release()
held.acquire()
child = os.fork()
if child == 0:
    signal.pause()
""",
    "executed with all descriptors": """
waiting = [sys.executable, "-c", "import signal; signal.pause()"]
child = subprocess.Popen(waiting, close_fds=False).pid
""",
}


@pytest.mark.parametrize("child", CHILDREN)
def test_is_refused_at_once_while_held_and_free_when_the_holder_is_killed(
    tmp_path: Path, child: str
) -> None:
    root = tmp_path / "checkpoints"
    root.mkdir()
    script = HOLDER.format(then=CHILDREN[child])
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child_pid = int(process.stdout.readline())
    try:
        with pytest.raises(RunLockedError) as refused:
            RunLock(str(root)).acquire()
        assert f"pid {process.pid} on {socket.gethostname()}" in str(refused.value)
        assert str(root) in str(refused.value)

        process.send_signal(signal.SIGKILL)
        process.wait()
        lock = RunLock(str(root))
        lock.acquire()
        lock.release()
        if child_pid:
            with Processes([child_pid]) as children:
                assert children.num_running() == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if child_pid:
            os.kill(child_pid, signal.SIGKILL)


def test_a_second_lock_in_the_same_process_is_refused_until_release(tmp_path: Path) -> None:
    first, second = RunLock(str(tmp_path)), RunLock(str(tmp_path))
    first.acquire()
    with pytest.raises(RunLockedError, match=f"pid {os.getpid()} "):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_file_names_its_holder_and_stays(tmp_path: Path) -> None:
    lock = RunLock(str(tmp_path))
    lock.acquire()
    record = json.loads((tmp_path / ".lock").read_text())
    assert (record["pid"], record["host"]) == (os.getpid(), socket.gethostname())
    assert read_lock_record(tmp_path) == record
    lock.release()
    assert (tmp_path / ".lock").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"7"])
def test_a_file_of_any_content_neither_blocks_nor_breaks(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    assert read_lock_record(tmp_path) == {}
    lock = RunLock(str(tmp_path))
    lock.acquire()
    lock.release()
    assert read_lock_record(tmp_path)["pid"] == os.getpid()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".lock").symlink_to(outside)
    with pytest.raises(OutputDirError, match=r"checkpoints/\.lock"):
        RunLock(str(tmp_path / "checkpoints")).acquire()
    assert outside.read_text() == "precious"


def test_a_directory_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputDirError, match=r"file/\.lock"):
        RunLock(str(tmp_path / "file")).acquire()


@pytest.mark.parametrize("how", ["replaced", "rewritten", "emptied", "a link"])
def test_a_lock_that_is_not_ours_any_more_is_not_confirmed(tmp_path: Path, how: str) -> None:
    lock = RunLock(str(tmp_path))
    lock.acquire()
    lock.confirm()
    path = tmp_path / ".lock"
    content = path.read_bytes()
    if how == "replaced":
        path.unlink()
        path.write_bytes(content)  # the words are the same, the lock is on another file
    elif how == "rewritten":
        path.write_text(json.dumps(json.loads(content) | {"token": "another's", "pid": 7}))
    elif how == "emptied":
        path.write_bytes(b"")
    else:
        path.rename(tmp_path / "moved")
        path.symlink_to("moved")
    said = {"rewritten": "is held by pid 7 on ", "replaced": f"is held by pid {os.getpid()} on "}
    with pytest.raises(RunLockedError, match=said.get(how, "was removed")):
        lock.confirm()
    lock.release()


def test_who_holds_it_is_not_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text('{"pid": 7, "host": "h"}')
    (tmp_path / ".lock").symlink_to("outside")
    assert read_lock_record(tmp_path) == {}


@pytest.mark.parametrize("call", ["open", "write"])
@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ENOSPC]
)
def test_a_machine_in_trouble_is_to_be_tried_again_and_leaves_the_lock_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def refuse(*args: object, **options: object) -> int:
        raise OSError(code, os.strerror(code))

    lock = RunLock(str(tmp_path), warn=False)
    with monkeypatch.context() as patch:
        place = {"open": "os.open", "write": "speedtronic.storage.lock._write"}[call]
        patch.setattr(place, refuse)
        with pytest.raises(StorageError, match=r"cannot lock .*/\.lock[:;]"):
            lock.acquire()
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError, match=r"cannot read .*/\.lock"):
            lock.confirm()
    lock.confirm()
    lock.release()


def test_a_directory_that_may_not_be_locked_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputDirError, match=r"cannot lock .*/\.lock: Read-only"):
        RunLock(str(tmp_path)).acquire()


def test_an_unlocking_that_fails_once_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = fcntl.flock, 0

    def flock(descriptor: int, how: int) -> None:
        nonlocal calls
        calls += how == fcntl.LOCK_UN
        if how == fcntl.LOCK_UN and calls == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor, how)

    lock = RunLock(str(tmp_path), warn=False)
    lock.acquire()
    monkeypatch.setattr(fcntl, "flock", flock)
    lock.release()
    assert calls == 2
    lock.acquire()
    lock.release()
