"""What the store may rely on, and the store on top of it, wherever the files are."""

import io
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from speedtronic.checkpoint import CheckpointStore, layout, open_lock, open_storage, survey
from speedtronic.checkpoint.candidates import read_pointer
from speedtronic.errors import (
    CheckpointError,
    NoValidCheckpointError,
    RunLockedError,
    StorageError,
)
from speedtronic.storage import objects as object_storage
from speedtronic.storage.base import Storage, publish, read_bytes
from speedtronic.storage.names import LOCK
from speedtronic.storage.objects import SMALL_BYTES, ObjectStorage
from tests.buckets import BUCKET, client, keys, s3_server, uploads
from tests.unit.checkpoint.states import state_at

payload, manifest = layout.payload_name, layout.manifest_name
number = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place of each kind."""
    if request.param == "local":
        return str(tmp_path / "a b")
    if request.param == "s3":
        request.getfixturevalue("server")
        return f"s3://{BUCKET}/run {next(number)}/checkpoints"
    return f"memory://run {next(number)}/checkpoints"


@pytest.fixture
def storage(url: str) -> Storage:
    opened = open_storage(url)
    opened.make_folder("")
    return opened


def put(storage: Storage, name: str, content: bytes) -> None:
    publish(storage, name, lambda file: file.write(content))


class Gone(BaseException):
    """The process ends here."""


# --- the storage ---


def test_an_empty_place_has_nothing(url: str) -> None:
    storage = open_storage(url)
    assert storage.root == url
    assert storage.list() == storage.list("quarantine") == []
    assert not storage.exists("a")
    for read in (storage.size, storage.open):
        with pytest.raises(StorageError, match=r"cannot read .*checkpoints/a|a b/a"):
            read("a")


def test_publishing_makes_and_replaces_the_whole(storage: Storage) -> None:
    put(storage, "a", b"first, and longer")
    put(storage, "a", b"second")
    put(storage, "empty", b"")
    assert sorted(storage.list()) == ["a", "empty"]
    assert (read_bytes(storage, "a"), read_bytes(storage, "empty")) == (b"second", b"")
    assert (storage.size("a"), storage.size("empty")) == (6, 0)
    assert storage.exists("a")
    assert publish(storage, "a", lambda file: file.write(b"four") and 7) == 7


def test_a_folder_is_apart(storage: Storage) -> None:
    storage.make_folder("aside")
    put(storage, "a", b"1")
    put(storage, "aside/b", b"22")
    storage.make_folder("aside too")
    put(storage, "aside too/c", b"333")
    assert storage.list() == ["a"]
    assert storage.list("aside") == ["b"]
    assert storage.size("aside/b") == 2
    storage.sync_folder("aside")


def test_renaming_replaces_and_leaves_nothing_behind(storage: Storage) -> None:
    storage.make_folder("aside")
    put(storage, "a", b"1")
    put(storage, "aside/a", b"former")
    storage.rename("a", "aside/a")
    assert (storage.list(), storage.list("aside")) == ([], ["a"])
    assert read_bytes(storage, "aside/a") == b"1"


def test_deleting_what_is_gone_is_no_error(storage: Storage) -> None:
    put(storage, "a", b"1")
    storage.delete("a")
    storage.delete("a")
    assert storage.list() == []


def test_nothing_has_the_name_before_all_is_written(storage: Storage) -> None:
    seen = []

    def write(file: Any) -> None:
        file.write(b"x" * (SMALL_BYTES + 1))
        file.write(b"y")
        seen.append((storage.exists("a"), [n for n in storage.list() if n == "a"]))

    publish(storage, "a", write, fence=lambda: seen.append((storage.exists("a"), [])))
    assert seen == [(False, []), (False, [])]
    assert storage.size("a") == SMALL_BYTES + 2
    assert read_bytes(storage, "a") == b"x" * (SMALL_BYTES + 1) + b"y"


@pytest.mark.parametrize("raised", [OSError(5, "Input/output error"), Gone()])
@pytest.mark.parametrize("at", ["start", "end", "fence"])
def test_what_is_not_published_leaves_nothing(
    storage: Storage, raised: BaseException, at: str
) -> None:
    put(storage, "a", b"former")

    def fail() -> None:
        raise raised

    def write(file: Any) -> None:
        if at == "start":
            fail()
        file.write(b"x" * (SMALL_BYTES + 1))
        if at == "end":
            fail()

    for name in ("a", "b"):
        with pytest.raises(type(raised) if at == "fence" else (StorageError, Gone)):
            publish(storage, name, write, fence=fail)
    assert storage.list() == ["a"]
    assert read_bytes(storage, "a") == b"former"


def test_reads_in_pieces_from_anywhere(storage: Storage) -> None:
    put(storage, "a", bytes(range(256)))
    with storage.open("a") as file:
        buffer = bytearray(10)
        assert file.seek(-6, io.SEEK_END) == 250
        assert file.readinto(buffer) == 6  # type: ignore[attr-defined]
        assert buffer[:6] == bytes(range(250, 256))
        assert file.read(1) == b""
        file.seek(3)
        assert (file.read(2), file.tell(), file.read()[:1]) == (b"\x03\x04", 5, b"\x05")


def test_sees_what_another_process_did_since(storage: Storage, url: str) -> None:
    other = open_storage(url)
    assert (other.list(), other.exists("a")) == ([], False)
    put(storage, "a", b"1")
    assert (other.list(), other.size("a")) == (["a"], 1)
    put(storage, "a", b"22")
    assert (other.size("a"), read_bytes(other, "a")) == (2, b"22")
    storage.delete("a")
    assert (other.list(), other.exists("a")) == ([], False)


# --- the store ---


def open_store(storage: Storage, keep_last: int | None = None) -> CheckpointStore:
    return CheckpointStore(storage, keep_last=keep_last)


def selected(url: str) -> int:
    """The step that a new process would go on from."""
    checkpoint = open_store(open_storage(url)).select()
    assert checkpoint is not None
    assert checkpoint.state["step"] == checkpoint.manifest.step
    return checkpoint.manifest.step


def damage(storage: Storage, name: str) -> None:
    content = bytearray(read_bytes(storage, name))
    content[len(content) // 2] ^= 1
    put(storage, name, bytes(content))


def test_nothing_saved_is_a_fresh_start(storage: Storage) -> None:
    store = open_store(storage)
    assert store.select() is None
    assert not store.has_checkpoints()


def test_saves_and_selects(storage: Storage, url: str) -> None:
    store = open_store(storage)
    for step in (2, 4):
        pointer = store.save(state_at(step))
    assert selected(url) == 4
    assert store.save(state_at(4)) == pointer  # it is there
    assert store.confirms(pointer)
    expected = [layout.POINTER, *(make(step) for step in (2, 4) for make in (manifest, payload))]
    assert sorted(storage.list()) == sorted(expected)
    assert [c.status for c in survey(open_storage(url)).checkpoints] == ["verified"] * 2


def test_retention(storage: Storage, url: str) -> None:
    store = open_store(storage, keep_last=2)
    for step in (2, 4, 6, 8):
        store.save(state_at(step))
    assert [c.step for c in survey(open_storage(url)).checkpoints] == [8, 6]
    assert len(storage.list()) == 5


@pytest.mark.parametrize("name", [payload(4), manifest(4)])
def test_steps_back_from_damage_and_keeps_what_was_damaged(
    storage: Storage, url: str, name: str
) -> None:
    store = open_store(storage)
    for step in (2, 4):
        store.save(state_at(step))
    damage(storage, name)
    damaged = read_bytes(storage, name)
    assert selected(url) == 2
    pointer = read_pointer(storage).pointer
    assert pointer is not None and pointer.step == 2
    assert sorted(storage.list("quarantine")) == sorted(
        f"{file}{suffix}" for file in (manifest(4), payload(4)) for suffix in ("", ".reason.json")
    )
    assert read_bytes(storage, f"quarantine/{name}") == damaged
    assert len(survey(open_storage(url)).quarantine) == 2
    assert manifest(4) not in storage.list() and payload(4) not in storage.list()
    store = open_store(storage)
    store.select()
    store.save(state_at(4))  # and the name is free again
    assert selected(url) == 4


def test_nothing_good_is_an_error_and_nothing_is_moved(storage: Storage) -> None:
    open_store(storage).save(state_at(2))
    damage(storage, payload(2))
    before = sorted(storage.list())
    with pytest.raises(NoValidCheckpointError, match="payload is damaged"):
        open_store(storage).select()
    assert sorted(storage.list()) == before


@pytest.mark.parametrize("how", ["missing", "stale", "damaged"])
def test_mends_the_pointer(storage: Storage, url: str, how: str) -> None:
    store = open_store(storage)
    store.save(state_at(2))
    former = read_bytes(storage, layout.POINTER)
    store.save(state_at(4))
    newest = read_bytes(storage, layout.POINTER)
    if how == "missing":
        storage.delete(layout.POINTER)
    else:
        put(storage, layout.POINTER, former if how == "stale" else newest[:-3])
    assert selected(url) == 4
    assert read_bytes(storage, layout.POINTER) == newest


def test_leaves_another_run_alone(storage: Storage, url: str) -> None:
    foreign = open_store(storage)
    foreign.save(state_at(8))
    storage.delete(layout.POINTER)
    mine = open_store(storage, keep_last=1)
    for step in (2, 4):
        mine.save(state_at(step))
    assert selected(url) == 4
    statuses = {c.step: c.status for c in survey(open_storage(url)).checkpoints}
    assert statuses == {8: "foreign", 4: "verified"}


@pytest.mark.parametrize("cut", [payload(4), manifest(4), layout.POINTER])
def test_a_save_that_ends_before_it_is_complete_leaves_the_former_one(
    storage: Storage, url: str, cut: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(storage)
    store.save(state_at(2))
    before = sorted(storage.list())
    sync = storage.sync

    def end(file: Any) -> None:
        if cut in file.name:
            raise Gone
        sync(file)

    monkeypatch.setattr(storage, "sync", end)
    with pytest.raises(Gone):
        store.save(state_at(4))
    complete = {
        payload(4): [],
        manifest(4): [payload(4)],
        layout.POINTER: [manifest(4), payload(4)],
    }
    assert sorted(storage.list()) == sorted([*before, *complete[cut]])
    assert selected(url) == (4 if cut == layout.POINTER else 2)


# --- the lock ---


def test_one_writer(storage: Storage, url: str) -> None:
    first, second = open_lock(storage), open_lock(open_storage(url))
    first.acquire()
    with pytest.raises(RunLockedError, match=r"pid \d+ on .* since "):
        second.acquire()
    first.confirm()
    first.release()
    second.acquire()
    second.confirm()
    second.release()
    second.release()


def test_of_many_at_once_one_is_let_in(storage: Storage, url: str) -> None:
    locks = [open_lock(open_storage(url)) for _ in range(8)]
    barrier = threading.Barrier(len(locks))
    refused: list[RunLockedError] = []

    def take(lock: Any) -> None:
        barrier.wait()
        try:
            lock.acquire()
        except RunLockedError as error:
            refused.append(error)

    threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == len(locks) - 1


def take_over(storage: Storage, url: str) -> Callable[[], None]:
    """As when an operator removed the lock of a process that seemed to hang, and began anew."""
    storage.delete(LOCK)
    lock = open_lock(open_storage(url))
    lock.acquire()
    return lock.release


@pytest.mark.parametrize("act", ["save", "select"])
def test_whose_lock_is_taken_over_changes_nothing(storage: Storage, url: str, act: str) -> None:
    lock = open_lock(storage)
    lock.acquire()
    old = CheckpointStore(storage, keep_last=1, fence=lock.confirm)
    for step in (2, 4):
        old.save(state_at(step))
    if act == "select":
        damage(storage, layout.POINTER)  # which selecting would mend
    release = take_over(storage, url)
    before = {name: read_bytes(storage, name) for name in storage.list()}
    with pytest.raises(RunLockedError, match=r"is held by pid \d+ on .* now"):
        old.save(state_at(6)) if act == "save" else old.select()
    assert {name: read_bytes(storage, name) for name in storage.list()} == before
    lock.release()  # which is not its own any more
    with pytest.raises(RunLockedError):
        open_lock(open_storage(url)).acquire()
    release()


@pytest.mark.parametrize("at", [payload(6), manifest(6), layout.POINTER])
def test_a_takeover_while_a_file_is_written_stops_that_file(
    storage: Storage, url: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = open_lock(storage)
    lock.acquire()
    old = CheckpointStore(storage, keep_last=1, fence=lock.confirm)
    old.save(state_at(4))
    create = storage.create
    release = []

    def taken_over(name: str) -> Any:
        if at in name and not release:
            release.append(take_over(storage, url))
        return create(name)

    monkeypatch.setattr(storage, "create", taken_over)
    with pytest.raises(RunLockedError, match="saves nothing more"):
        old.save(state_at(6))
    there = storage.list()
    written = [name for name in (payload(6), manifest(6)) if name in there]
    assert written == {payload(6): [], manifest(6): [payload(6)]}.get(at, [payload(6), manifest(6)])
    assert read_pointer(storage).pointer.step == 4  # type: ignore[union-attr]
    assert payload(4) in there
    release[0]()


@pytest.mark.parametrize(
    ("at", "big"),
    [(payload(6), False), (payload(6), True), (manifest(6), False), (layout.POINTER, False)],
)
def test_one_that_is_stopped_with_a_put_under_way_replaces_nothing(
    url: str, at: str, big: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(url)
    if not isinstance(storage, ObjectStorage):
        pytest.skip("a rename is not under way for long")
    monkeypatch.setattr(object_storage, "SMALL_BYTES", 0 if big else SMALL_BYTES)
    lock = open_lock(storage)
    lock.acquire()
    old = CheckpointStore(storage, keep_last=None, fence=lock.confirm)
    old.save(state_at(4))
    new, sync, release = open_storage(url), storage.sync, []

    def stopped(file: Any) -> None:
        if file.name == at:
            release.append(take_over(new, url))
            other = open_store(new)
            other.select()
            other.save(state_at(6, fill=9.0))
            release.append({name: read_bytes(new, name) for name in new.list()})
        sync(file)

    monkeypatch.setattr(storage, "sync", stopped)
    with pytest.raises(RunLockedError, match="is held by"):
        old.save(state_at(6))
    assert {name: read_bytes(new, name) for name in new.list()} == release[1]
    assert selected(url) == 6
    release[0]()


def test_a_lock_that_was_removed_is_lost(storage: Storage) -> None:
    lock = open_lock(storage)
    lock.acquire()
    storage.delete(LOCK)
    with pytest.raises(RunLockedError, match="was removed"):
        lock.confirm()
    lock.release()


# --- s3 only ---


def test_sees_what_another_client_did_since(server: str) -> None:
    storage = open_storage(f"s3://{BUCKET}/seen")
    put(storage, "a", b"1")
    assert (storage.list(), storage.size("a"), storage.exists("b")) == (["a"], 1, False)
    client().put_object(Bucket=BUCKET, Key="seen/a", Body=b"22")
    client().put_object(Bucket=BUCKET, Key="seen/b", Body=b"22")
    assert (storage.list(), storage.size("a"), storage.exists("b")) == (["a", "b"], 2, True)
    assert read_bytes(storage, "a") == b"22"
    client().delete_object(Bucket=BUCKET, Key="seen/a")
    assert (storage.list(), storage.exists("a")) == (["b"], False)


def test_parts_of_what_fails_are_given_up(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(f"s3://{BUCKET}/parts")
    assert isinstance(storage, ObjectStorage)
    monkeypatch.setattr(storage._filesystem, "default_block_size", 5 * 2**20)
    seen = []

    def write(file: Any) -> None:
        file.write(b"x" * (SMALL_BYTES + 1))
        seen.append(uploads())
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageError, match="Input/output error"):
        publish(storage, "a", write)
    assert (seen, uploads(), keys("parts")) == ([["parts/a"]], [], [])


def test_parts_of_a_dead_process_are_given_up_by_the_next(server: str) -> None:
    for folder in ("dead", "of another"):
        client().create_multipart_upload(Bucket=BUCKET, Key=f"{folder}/a")
    lock = open_lock(open_storage(f"s3://{BUCKET}/dead"))
    lock.acquire()
    lock.release()
    assert uploads() == ["of another/a"]


def test_no_bucket_is_an_error_and_not_an_empty_place(server: str) -> None:
    storage = open_storage("s3://nosuchbucket/run")
    for act in (storage.list, lambda: storage.exists("a"), open_lock(storage).acquire):
        with pytest.raises(StorageError, match=r"s3://nosuchbucket/run.*bucket does not exist"):
            act()
    with pytest.raises(CheckpointError, match="bucket does not exist"):
        open_store(storage).save(state_at(2))


def test_no_server_is_an_error_and_not_an_empty_place(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs import S3FileSystem

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    S3FileSystem.clear_instance_cache()
    storage = open_storage("s3://bucket/run")
    try:
        for act in (storage.list, lambda: storage.exists("a"), lambda: storage.open("a")):
            with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
                act()
    finally:
        S3FileSystem.clear_instance_cache()
