"""A lease: who gets it, when it is lost, and what a store without conditions still gives."""

import json
import logging
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from speedtronic.checkpoint import Lease, open_storage
from speedtronic.errors import RunLockedError, StorageError
from speedtronic.storage import lease
from speedtronic.storage.lock_owner import lock_owner
from speedtronic.storage.lock_record import new_record
from speedtronic.storage.names import LOCK
from speedtronic.storage.objects import ObjectStorage
from speedtronic.storage.s3 import S3Storage
from tests.waiting import wait_until


@pytest.fixture
def storage(tmp_path: Path) -> ObjectStorage:
    opened = open_storage(f"memory://{tmp_path}")
    assert isinstance(opened, ObjectStorage)
    return opened


@pytest.fixture
def held(storage: ObjectStorage) -> Iterator[Lease]:
    taken = Lease(storage)
    taken.acquire()
    yield taken
    taken.release()


def record(storage: ObjectStorage) -> dict[str, Any]:
    return dict(json.loads(storage.read_version(LOCK)[0]))


def change(storage: ObjectStorage, **fields: Any) -> None:
    """Rewrite the lease as another process would find it."""
    content, version = storage.read_version(LOCK)
    former = json.loads(content) if content else {}
    assert storage.swap(LOCK, json.dumps({**former, **fields}).encode(), version)


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_an_expired_one_is_taken_over_and_the_former_holder_finds_out(
    storage: ObjectStorage, held: Lease
) -> None:
    change(storage, lease_s=0)
    second = Lease(storage)
    second.acquire()
    with pytest.raises(RunLockedError, match=f"is held by pid {os.getpid()} on .* now"):
        held.confirm()
    held.release()
    second.confirm()
    second.release()


@pytest.mark.parametrize(
    ("machine", "pid", "started", "free"),
    [
        ("another", dead_pid, "1", False),  # who knows what lives there
        ("this", dead_pid, "1", True),
        ("this", os.getppid, "1", True),  # the number was given to another process since
        ("this", os.getpid, None, False),
        ("this", lambda: "7", "1", False),
        ("this", lambda: -1, "1", False),
        ("", dead_pid, "1", False),
    ],
)
def test_blocks_unless_its_holder_is_surely_gone(
    storage: ObjectStorage, machine: str, pid: Any, started: str | None, free: bool
) -> None:
    me = new_record()
    there = {"this": me["machine"]}.get(machine, machine)
    fields = {**me, "machine": there, "pid": pid(), "started": started or me["started"]}
    change(storage, **fields, lease_s=50, expires_at=time.time() + 50)
    if free:
        taken = Lease(storage)
        taken.acquire()
        taken.release()
    else:
        with pytest.raises(
            RunLockedError, match=rf"pid {fields['pid']} on .*lease ends in (50|49) s"
        ):
            Lease(storage).acquire()
        change(storage, lease_s=-0.001)
        taken = Lease(storage)
        taken.acquire()  # at most for the time of a lease
        taken.release()


DAY_S = 86400.0


@pytest.mark.parametrize("lease", [{"lease_s": 60.0}, {}, {"lease_s": DAY_S}], ids=str)
def test_a_holder_with_a_fast_clock_blocks_no_longer_than_another(
    lease: dict[str, float], storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(storage, **new_record(), **lease, expires_at=time.time() + DAY_S)
    monkeypatch.setattr(ObjectStorage, "age_s", lambda *_: 59.0)
    with pytest.raises(RunLockedError, match="lease ends in 1 s"):
        Lease(storage).acquire()
    assert str(os.getpid()) in lock_owner(storage)
    monkeypatch.setattr(ObjectStorage, "age_s", lambda *_: 61.0)
    assert lock_owner(storage) == ""
    taken = Lease(storage)
    taken.acquire()
    taken.release()


def test_one_with_a_slow_clock_is_not_overtaken(storage: ObjectStorage) -> None:
    change(storage, **new_record(), lease_s=60.0, expires_at=time.time() - DAY_S)
    with pytest.raises(RunLockedError):
        Lease(storage).acquire()


def test_age_is_that_of_the_object(storage: ObjectStorage) -> None:
    assert storage.age_s(LOCK) == 0.0
    change(storage, lease_s=1)
    assert 0 <= storage.age_s(LOCK) < 60
    file = storage._filesystem.store[storage._key(LOCK)]
    file.modified -= timedelta(days=1)
    assert DAY_S <= storage.age_s(LOCK) < DAY_S + 60


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"expires_at": "soon"}',
        b'{"expires_at": 9e9, "lease_s": "long"}',
    ],
)
def test_what_is_no_lease_does_not_block(storage: ObjectStorage, content: bytes) -> None:
    storage.swap(LOCK, content, "")
    taken = Lease(storage)
    taken.acquire()
    assert record(storage)["pid"] == os.getpid()
    taken.release()


def test_is_renewed_in_the_background_and_not_after_its_release(storage: ObjectStorage) -> None:
    taken = Lease(storage, lease_s=0.4)
    taken.acquire()
    first = record(storage)["expires_at"]
    assert wait_until(lambda: record(storage)["expires_at"] > first + 0.8, 20)
    with pytest.raises(RunLockedError):
        Lease(storage).acquire()
    taken.release()
    assert record(storage)["expires_at"] == 0
    assert record(storage)["pid"] == os.getpid()  # who had it last


def test_the_background_says_so_when_it_is_lost(
    storage: ObjectStorage, caplog: pytest.LogCaptureFixture
) -> None:
    taken = Lease(storage, lease_s=0.2)
    taken.acquire()
    with caplog.at_level(logging.ERROR):
        storage.delete(LOCK)
        assert wait_until(lambda: "was removed" in caplog.text, 20)
    assert storage.list() == []
    with pytest.raises(RunLockedError):
        taken.confirm()
    taken.release()
    assert storage.list() == []


def test_goes_on_trying_while_the_store_cannot_be_reached(
    storage: ObjectStorage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Lease(storage, lease_s=0.2)
    taken.acquire()

    def unreachable(*args: Any) -> Any:
        tries.append(args)
        raise StorageError("no route to host")

    tries: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(storage, "swap", unreachable)
        assert wait_until(lambda: len(tries) > 2, 20)
        with pytest.raises(StorageError, match="no route"):
            taken.confirm()
    taken.confirm()
    assert caplog.text.count("was not renewed") == 1
    taken.release()


def test_an_answer_that_was_lost_is_no_takeover(
    storage: ObjectStorage, held: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = storage.swap

    def lossy(name: str, content: bytes, version: str) -> str | None:
        swap(name, content, version)
        return swap(name, content, version)  # sent again, and refused

    with monkeypatch.context() as patch:
        patch.setattr(storage, "swap", lossy)
        held.confirm()
    held.confirm()


class Unconditional(ObjectStorage):
    """A store that takes every write."""

    def swap(self, name: str, content: bytes, version: str) -> str | None:
        return super().swap(name, content, self.version(name))


@pytest.fixture
def careless(storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch) -> Unconditional:
    monkeypatch.setattr(lease, "SETTLE_S", 0.0)
    return Unconditional(storage._filesystem, storage._folder, storage.root)


def test_without_conditions_it_warns_and_reads_back(
    careless: Unconditional, caplog: pytest.LogCaptureFixture
) -> None:
    taken = Lease(careless)
    taken.acquire()
    assert "knows no conditional writes" in caplog.text
    taken.confirm()
    change(careless, token="another's", pid=7)
    with pytest.raises(RunLockedError, match="pid 7 "):
        taken.confirm()
    taken.release()
    assert record(careless)["pid"] == 7


def test_without_conditions_the_last_to_write_has_it(
    careless: Unconditional, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Lease(careless)
    monkeypatch.setattr(
        taken._released, "wait", lambda timeout: change(careless, token="another's", pid=7)
    )
    with pytest.raises(RunLockedError, match="pid 7 "):
        taken.acquire()


class _OldServer:
    """A client of a server that does not implement conditions."""

    def __init__(self) -> None:
        self.content = b""

    def pipe_file(self, key: str, content: bytes, **condition: str) -> dict[str, str]:
        if condition:
            error = OSError("A header you provided implies functionality that is not implemented")
            error.__cause__ = Exception()
            error.__cause__.response = {"Error": {"Code": "NotImplemented"}}  # type: ignore[attr-defined]
            raise error
        self.content = content
        return {"ETag": content.decode()}


def test_a_server_that_knows_no_conditions_is_written_without() -> None:
    server = _OldServer()
    old = S3Storage(server, "bucket/run", "s3://bucket/run")
    assert old.swap("a", b"1", "") == "1"
    assert old.swap("a", b"2", "") == "2"
    assert server.content == b"2"
