"""What is no history of this run, and no fresh start either: refused by name, and left as it is."""

import os
import socket
import uuid
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, layout, open_lock, open_storage, survey
from speedtronic.checkpoint.candidates import candidates
from speedtronic.checkpoint.loading import load_newest, load_step
from speedtronic.checkpoint.retention import pin, pinned
from speedtronic.errors import (
    LegacyStoreError,
    NoValidCheckpointError,
    OutputDirError,
    StorageError,
)
from speedtronic.recovery.rollback import roll_back
from speedtronic.storage.base import publish
from speedtronic.storage.lock import read_lock_record
from speedtronic.storage.lock_owner import lock_owner
from tests.tiny import Tree
from tests.unit.checkpoint.states import open_store, selected_step, state_at

Odd = Callable[[Path], object]


def save(root: Path, *steps: int, keep_last: int | None = None) -> CheckpointStore:
    store = open_store(root, keep_last)
    store.select()
    for step in steps:
        store.save(state_at(step))
    return store


def a_link(path: Path) -> None:
    """As dvc and git-annex leave it: the file elsewhere, a link in its place."""
    aside = path.parent.parent / "annex" / path.name
    aside.parent.mkdir(exist_ok=True)
    path.rename(aside)
    path.symlink_to(aside)


def a_relative_link(path: Path) -> None:
    a_link(path)
    path.unlink()
    path.symlink_to(f"../annex/{path.name}")


def a_dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent.parent / "nowhere")


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "data.bin").write_text("somebody's")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name has at most about a hundred characters
        try:
            bound.bind(path.name)
        finally:
            os.chdir(here)


ODD: dict[str, Odd] = {
    "a link to ": a_link,
    "a link to ../annex": a_relative_link,
    "which is not there": a_dangling_link,
    "a link to": a_link_to_itself,
    "a folder": a_folder,
    "a pipe": a_pipe,
    "a socket": a_socket,
}
FILES = [layout.payload_name(6), layout.manifest_name(6)]


def picture(root: Path) -> Tree:
    """Every name below a directory with what it is and holds; times only of what is a file."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        if path.is_symlink():
            content = str(path.readlink()).encode()
        found[str(path.relative_to(root))] = (info.st_mode, content)
    return found


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path, kind: str, file: str) -> None:
    root = tmp_path / "store"
    save(root, 2, 4, 6)
    ODD[kind](root / file)
    before = picture(tmp_path)
    with pytest.raises(NoValidCheckpointError) as raised:
        open_store(root).select()
    assert f"{root / file} is {kind if kind.startswith('a ') else 'a link'}" in str(raised.value)
    assert kind in str(raised.value)
    found = survey(open_storage(str(root)))
    assert (found.selected, found.checkpoints[0].status) == (None, "irregular")
    assert kind in found.checkpoints[0].reason
    with pytest.raises(NoValidCheckpointError, match=r"step_000000000006\.\w+ is a "):
        load_newest(open_storage(str(root)))
    with pytest.raises(NoValidCheckpointError, match=r"step_000000000006\.\w+ is a "):
        load_step(open_storage(str(root)), 6)
    assert picture(tmp_path) == before


@pytest.mark.parametrize("kind", ODD)
def test_one_alone_is_no_fresh_start(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    save(root, 2)
    for name in (layout.POINTER, layout.manifest_name(2)):
        (root / name).unlink()
    ODD[kind](root / layout.payload_name(2))
    before = picture(tmp_path)
    store = open_store(root)
    assert store.has_checkpoints()
    with pytest.raises(NoValidCheckpointError, match=layout.payload_name(2)):
        store.select()
    with pytest.raises(StorageError, match=layout.payload_name(2)):
        store.save(state_at(2))
    assert picture(tmp_path) == before


def test_links_behind_a_good_checkpoint_are_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    save(root, 2, 4, 6)
    for name in (layout.payload_name(2), layout.manifest_name(2), layout.payload_name(4)):
        a_link(root / name)
    before = picture(root)
    store = open_store(root, keep_last=1)
    assert store.select() is not None
    for step in (8, 10):
        store.save(state_at(step))
    after = picture(root)
    kept = (layout.payload_name(2), layout.manifest_name(2), layout.payload_name(4))
    assert all(after[name] == before[name] for name in (*kept, layout.manifest_name(4)))
    assert sorted(layout.steps_newest_first(after)) == [
        2,
        4,
        6,
        10,
    ]  # 6 is the one that was verified


def test_links_of_another_run_are_skipped(tmp_path: Path) -> None:
    root = tmp_path / "store"
    save(root, 2, 4)
    save(tmp_path / "other", 6)
    for name in (layout.payload_name(6), layout.manifest_name(6)):
        (tmp_path / "other" / name).rename(root / name)
    a_link(root / layout.payload_name(6))
    assert selected_step(root) == 4


def test_a_rollback_moves_no_link(tmp_path: Path) -> None:
    root = tmp_path / "store"
    save(root, 2, 4, 6)
    a_link(root / layout.payload_name(6))
    before = picture(tmp_path)
    with pytest.raises(NoValidCheckpointError, match="is a link to"):
        roll_back(open_storage(str(root)), 2)
    del (after := picture(tmp_path))["store/.lock"]
    assert after == before


@pytest.mark.parametrize("kind", ODD)
def test_a_pin_holds_whatever_it_is(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "store"
    store = save(root, 2, 4, 6, keep_last=1)
    pin(open_storage(str(root)), 6, "for a person")
    ODD[kind](root / layout.pin_name(6))
    for step in (8, 10, 12):
        store.save(state_at(step))
    assert sorted(layout.steps_newest_first(path.name for path in root.iterdir())) == [6, 12]
    assert pinned(open_storage(str(root))) == {6: "unknown"}


@pytest.mark.parametrize("kind", ODD)
def test_a_lock_that_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "store").mkdir()
    lock = tmp_path / "store" / ".lock"
    lock.write_text("")
    ODD[kind](lock)
    before = picture(tmp_path)
    with pytest.raises(OutputDirError, match=r"\.lock.*: it is a (link|folder|pipe|socket)"):
        open_lock(open_storage(str(tmp_path / "store"))).acquire()
    assert picture(tmp_path) == before


def test_a_folder_among_objects_is_refused_too() -> None:
    url = f"memory://refusal-{uuid.uuid4()}"
    storage = open_storage(url)
    store = CheckpointStore(storage, keep_last=None, first_saves=(2,))
    store.save(state_at(2))
    publish(storage, f"{layout.payload_name(4)}/data.bin", lambda file: file.write(b"x"))
    with pytest.raises(NoValidCheckpointError, match=r"step_000000000004\.pt is a folder"):
        CheckpointStore(open_storage(url), keep_last=None).select()
    assert survey(open_storage(url)).selected is None


def test_a_directory_that_leads_nowhere_is_no_empty_one(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StorageError, match=r"a link to .*, which is not there"):
        open_store(tmp_path / "store").select()


# --- payloads without manifests ---


def without_manifests(root: Path, *steps: int) -> None:
    """What a copy leaves that took the large files only."""
    save(root, *steps)
    for path in root.glob("*.json"):
        path.unlink()


@pytest.mark.parametrize(
    ("steps", "first_saves"),
    [([2, 4, 6], (2,)), ([2, 4], (2,)), ([4], (2,)), ([3], (2,)), ([2], ()), ([6], range(1, 6))],
)
def test_payloads_without_manifests_are_refused(
    tmp_path: Path, steps: list[int], first_saves: Collection[int]
) -> None:
    without_manifests(tmp_path, *steps)
    before = picture(tmp_path)
    store = CheckpointStore(open_storage(str(tmp_path)), keep_last=1, first_saves=first_saves)
    with pytest.raises(NoValidCheckpointError) as raised:
        store.select()
    assert all(layout.payload_name(step) in str(raised.value) for step in steps)
    assert "\n" not in str(raised.value)
    assert picture(tmp_path) == before


def test_a_first_save_on_a_stop_may_be_anywhere_before_the_first_multiple(tmp_path: Path) -> None:
    without_manifests(tmp_path, 3)
    store = CheckpointStore(open_storage(str(tmp_path)), keep_last=1, first_saves=range(1, 5))
    assert store.select() is None
    assert (tmp_path / "quarantine" / layout.payload_name(3)).is_file()


def test_a_payload_alone_beside_a_damaged_pointer_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 2)
    (tmp_path / layout.manifest_name(2)).unlink()
    (tmp_path / layout.POINTER).write_text("{")
    before = picture(tmp_path)
    with pytest.raises(NoValidCheckpointError, match=r"latest\.json"):
        open_store(tmp_path).select()
    assert picture(tmp_path) == before


def test_one_of_the_older_format_among_ours_is_named(tmp_path: Path) -> None:
    without_manifests(tmp_path, 2)
    torch.save({"step": 4, "model": {"w": torch.ones(2)}}, tmp_path / layout.payload_name(4))
    with pytest.raises(LegacyStoreError, match="--trust-legacy"):
        open_store(tmp_path).select()


def test_a_file_with_a_similar_name_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("step_000000000004.py", "step_000000000004.", "step_000000000004.bak.gz"):
        (tmp_path / name).write_text("x")
    assert list(candidates(open_storage(str(tmp_path)))) == []
    assert open_store(tmp_path).select() is None


# --- records of absurd size ---


@pytest.fixture
def with_huge(tmp_path: Path) -> Callable[[str], Path]:
    """A store of steps 2 and 4 in which one file has 300 GB, all zeros."""

    def make(name: str) -> Path:
        save(tmp_path, 2, 4)
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 300 * 2**30)
        return tmp_path

    return make


@pytest.mark.parametrize("name", [layout.manifest_name(4), layout.POINTER])
def test_a_record_of_absurd_size_is_damage_with_a_name(
    with_huge: Callable[[str], Path], name: str
) -> None:
    root = with_huge(name)
    found = survey(open_storage(str(root)))
    reason = found.checkpoints[0].reason or found.pointer_problem
    assert reason.startswith(f"{name} has 322122547200 bytes, expected at most 16777216")
    assert selected_step(root) == (2 if name.startswith("step") else 4)
    kept = root / "quarantine" / name
    assert kept.stat().st_size == 300 * 2**30
    assert not (root / name).exists() or (root / name).stat().st_size < 10_000


def test_a_pin_of_absurd_size_holds(with_huge: Callable[[str], Path]) -> None:
    root = with_huge(layout.pin_name(4))
    assert pinned(open_storage(str(root))) == {4: "unknown"}


def test_a_lock_of_absurd_size_names_nobody(with_huge: Callable[[str], Path]) -> None:
    root = with_huge(".lock")
    assert read_lock_record(root) == {}
    assert lock_owner(open_storage(str(root))) == ""
    lock = open_lock(open_storage(str(root)))
    lock.acquire()
    lock.release()


def test_a_reason_of_absurd_size_cannot_be_read(with_huge: Callable[[str], Path]) -> None:
    root = with_huge(layout.manifest_name(4))
    selected_step(root)
    note = root / "quarantine" / f"{layout.payload_name(4)}.reason.json"
    os.truncate(note, 300 * 2**30)
    reasons = [entry.reason for entry in survey(open_storage(str(root))).quarantine]
    assert f"{note.name} cannot be read" in reasons
