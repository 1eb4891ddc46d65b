"""What is tried out before it is relied on, and what is said where it does not hold."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from speedtronic.checkpoint import RunLock
from speedtronic.storage import probe
from speedtronic.storage.probe import file_system, missing_guarantees

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:28 / /mnt/share rw shared:7 master:1 - nfs4 server:/export rw,local_lock=none
31 27 0:29 / /mnt/with\040space rw - fuse.sshfs me@host: rw
32 30 0:30 / /mnt/share/fast rw - xfs /dev/vdb rw
33 27 0:31 / /mnt/twice rw - ext4 /dev/vdc rw
34 33 0:32 / /mnt/twice rw - cifs //host/x rw
""".splitlines()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/run", "ext4"),
        ("/mnt/share/run", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/share/fast/run", "xfs"),
        ("/mnt/with space", "fuse.sshfs"),
        ("/mnt/twice/run", "cifs"),
    ],
)
def test_finds_the_file_system(path: str, expected: str) -> None:
    assert file_system(Path(path), MOUNTS) == expected
    assert file_system(Path(path), []) == ""


@pytest.fixture
def locked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Path]:
    lock = RunLock(str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="speedtronic.storage.lock"):
        lock.acquire()
    # The lease of a test before may still tell in its thread that it was lost.
    assert [r for r in caplog.records if r.name == "speedtronic.storage.lock"] == []
    yield tmp_path
    lock.release()


def test_a_local_disk_is_quickly_found_good(locked: Path) -> None:
    elapsed = []
    for _ in range(20):
        started = time.perf_counter()
        assert missing_guarantees(locked) == []
        elapsed.append(time.perf_counter() - started)
    assert sorted(elapsed)[5] < 0.02
    assert [path.name for path in locked.iterdir()] == [".lock"]


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "fuse.sshfs"])
def test_warns_of_a_network_file_system(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["27 1 254:0 / / rw - ext4 a rw", f"28 27 0:1 / {tmp_path} rw - {kind} b rw"]
    monkeypatch.setattr(probe, "_mounts", lambda: lines)
    lock = RunLock(str(tmp_path))
    lock.acquire()
    lock.release()
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path} is on a network file system ({kind}): ")
    assert "\n" not in said


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "zfs"])
def test_says_nothing_of_a_local_one(
    locked: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_mounts", lambda: [f"27 1 254:0 / / rw - {kind} a rw"])
    assert missing_guarantees(locked) == []


@pytest.mark.parametrize("refused", [False, True])
def test_warns_where_a_lock_excludes_nobody(
    locked: Path, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        if refused:
            raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    (said,) = missing_guarantees(locked)
    assert "keeps no locks" in said


@pytest.mark.parametrize("how", ["refuses", "ignores", "copies"])
def test_warns_where_renaming_does_not_replace(
    locked: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(self: Path, target: Path) -> Any:
        if how == "refuses":
            raise OSError(17, "File exists")
        if how == "copies":
            target.write_bytes(self.read_bytes())

    monkeypatch.setattr(Path, "replace", replace)
    (said,) = missing_guarantees(locked)
    assert "renaming does not replace" in said
    assert os.listdir(locked) == [".lock"]  # noqa: PTH208
