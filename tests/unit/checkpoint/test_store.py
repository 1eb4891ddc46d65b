"""The store on real files: what is written in which order, kept, selected and refused."""

import errno
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, layout, open_storage, survey
from speedtronic.checkpoint.candidates import read_pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.checkpoint.quarantine import quarantined
from speedtronic.checkpoint.records import Manifest
from speedtronic.checkpoint.selection import CUT_SHORT
from speedtronic.errors import (
    LegacyStoreError,
    NoValidCheckpointError,
    StorageError,
    StorageFullError,
    UnsupportedFormatError,
)
from speedtronic.storage.names import is_temporary
from tests.tiny import names, tree
from tests.unit.checkpoint.faults import FaultyStorage
from tests.unit.checkpoint.states import open_store, selected_step, state_at


def payload(step: int) -> str:
    return layout.payload_name(step)


def manifest(step: int) -> str:
    return layout.manifest_name(step)


def saved(root: Path, *steps: int, keep_last: int | None = None) -> CheckpointStore:
    store = open_store(root, keep_last)
    for step in steps:
        store.save(state_at(step))
    return store


# --- order ---

EFFECTS = {"create", "sync", "rename", "delete", "sync_folder"}


def effects(storage: FaultyStorage) -> list[tuple[str, str]]:
    """What the storage was told to change, writes apart."""
    return [operation for operation in storage.operations if operation[0] in EFFECTS]


def published(name: str) -> list[tuple[str, str]]:
    return [("create", name), ("sync", name), ("rename", name), ("sync_folder", "")]


def test_commits_payload_then_manifest_then_pointer_each_durable_before_the_next(
    tmp_path: Path,
) -> None:
    storage = FaultyStorage(tmp_path)
    CheckpointStore(storage, keep_last=None).save(state_at(4))
    order = [payload(4), manifest(4), "latest.json"]
    assert effects(storage) == [effect for name in order for effect in published(name)]
    assert storage.operations[0] == ("make_folder", "")


def test_deletes_the_manifest_durably_before_the_payload_and_after_the_new_pointer(
    tmp_path: Path,
) -> None:
    storage = FaultyStorage(tmp_path)
    store = CheckpointStore(storage, keep_last=1)
    store.save(state_at(2))
    storage.operations.clear()
    store.save(state_at(4))
    assert effects(storage)[-5:] == [
        ("rename", "latest.json"),
        ("sync_folder", ""),
        ("delete", manifest(2)),
        ("sync_folder", ""),
        ("delete", payload(2)),
    ]


def test_every_file_begins_as_a_temporary_beside_it(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    CheckpointStore(storage, keep_last=None).save(state_at(4))
    assert len(storage.temporaries) == len(set(storage.temporaries)) == 3
    assert all(is_temporary(name) and "/" not in name for name in storage.temporaries)


# --- a disk that says no ---


@pytest.mark.parametrize("verb", ["create", "sync", "rename", "sync_folder"])
def test_a_refused_operation_fails_the_save_and_keeps_what_was_there(
    tmp_path: Path, verb: str
) -> None:
    saved(tmp_path, 2)
    storage = FaultyStorage(tmp_path)
    store = CheckpointStore(storage, keep_last=None)
    store.select()
    storage.fail(verb)
    with pytest.raises(StorageError, match="Input/output"):
        store.save(state_at(4))
    assert selected_step(tmp_path) == 2
    assert not [name for name in names(tmp_path) if is_temporary(name)]
    storage.fail("")
    assert store.save(state_at(4)).step == 4
    assert selected_step(tmp_path) == 4


def test_a_failed_fsync_is_never_tried_again_on_the_same_file(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    store = CheckpointStore(storage, keep_last=None)
    storage.fail("sync")
    for _ in range(2):
        with pytest.raises(StorageError):
            store.save(state_at(4))
    assert len(set(storage.temporaries)) == 2


def test_a_full_disk_is_named_and_loses_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    storage = FaultyStorage(tmp_path)
    store = CheckpointStore(storage, keep_last=None)
    store.select()
    before = tree(tmp_path)
    storage.fail("write")
    with pytest.raises(StorageFullError, match="cannot save step 4 to"):
        store.save(state_at(4))
    assert tree(tmp_path) == before


def test_a_save_without_room_is_refused_before_a_byte_is_written(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    size = (tmp_path / payload(2)).stat().st_size
    for reopened in (False, True):  # the size is known from the last save, or from the manifest
        storage = FaultyStorage(tmp_path)
        store = CheckpointStore(storage, keep_last=None)
        if reopened:
            store.select()
        else:
            store.save(state_at(3))
            size = (tmp_path / payload(3)).stat().st_size
        before, storage.free = tree(tmp_path), size - 1
        del storage.operations[:]
        with pytest.raises(StorageFullError, match=r"needs 0\.0 MiB, found 0\.0 MiB") as caught:
            store.save(state_at(4))
        assert (caught.value.needed_bytes, caught.value.free_bytes) == (size, size - 1)
        assert "cannot save step 4" in str(caught.value)
        assert tree(tmp_path) == before
        assert not [operation for operation in storage.operations if operation[0] == "create"]
        storage.free = size
        assert store.save(state_at(4)).step == 4
        for name in (payload(4), manifest(4)):
            (tmp_path / name).unlink()


# --- retention ---


@pytest.mark.parametrize(
    ("keep_last", "kept"), [(1, [5]), (3, [3, 4, 5]), (9, [1, 2, 3, 4, 5]), (None, [1, 2, 3, 4, 5])]
)
def test_keeps_the_last_by_step(tmp_path: Path, keep_last: int | None, kept: list[int]) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5, keep_last=keep_last)
    assert names(tmp_path) == sorted(
        ["latest.json", *map(payload, kept), *map(manifest, kept)], key=str
    )


def test_retention_counts_steps_not_names_or_times(tmp_path: Path) -> None:
    store = saved(tmp_path, 999_999_999_998, 999_999_999_999, keep_last=2)
    before = names(tmp_path)
    store.save(state_at(5))  # the youngest file, and never deleted while the pointer names it
    assert set(names(tmp_path)) == {*before, payload(5), manifest(5)}


def test_files_of_another_run_are_not_counted_deleted_or_resumed(tmp_path: Path) -> None:
    saved(tmp_path / "other", 1, 3, 9)
    for file in (tmp_path / "other").glob("step_*"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        shutil.copy2(file, tmp_path / "mine")
    foreign = tree(tmp_path / "mine")
    store = saved(tmp_path / "mine", 2, 4, 6, keep_last=2)
    assert store.run_id is not None
    now = tree(tmp_path / "mine")
    assert {name: now[name] for name in foreign} == foreign
    assert set(now) - set(foreign) == {"latest.json", *map(payload, [4, 6]), *map(manifest, [4, 6])}
    assert selected_step(tmp_path / "mine") == 6


def test_a_pointer_whose_run_is_gone_does_not_lead_into_another_run(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    saved(tmp_path / "other", 4)
    for name in (payload(2), manifest(2)):
        (tmp_path / name).unlink()
    for name in (payload(4), manifest(4)):
        (tmp_path / "other" / name).rename(tmp_path / name)
    before = tree(tmp_path)
    with pytest.raises(NoValidCheckpointError, match=r"names step 2.*1 of another run"):
        open_store(tmp_path).select()
    assert tree(tmp_path) == before


# --- saving a step again ---


def test_the_same_state_again_writes_nothing(tmp_path: Path) -> None:
    store = saved(tmp_path, 2, 4)
    before = tree(tmp_path)
    pointer = store.save(state_at(4))
    assert tree(tmp_path) == before
    assert pointer == read_pointer(open_storage(str(tmp_path))).pointer


def test_another_state_of_the_same_step_makes_way(tmp_path: Path) -> None:
    store = saved(tmp_path, 2, 4)
    former = (tmp_path / payload(4)).read_bytes()
    store.save(state_at(4, fill=0.5))
    assert (tmp_path / "quarantine" / payload(4)).read_bytes() == former
    checkpoint = open_store(tmp_path).select()
    assert checkpoint is not None
    assert checkpoint.state["model"]["embedding"][0, 0] == 0.5


def test_a_foreign_file_of_the_same_step_is_moved_not_overwritten(tmp_path: Path) -> None:
    saved(tmp_path / "other", 4)
    store = saved(tmp_path / "mine", 2)
    originals = {}
    for name in (payload(4), manifest(4)):
        originals[name] = (tmp_path / "other" / name).read_bytes()
        shutil.copy2(tmp_path / "other" / name, tmp_path / "mine" / name)
    store.save(state_at(4))
    for name, content in originals.items():
        assert (tmp_path / "mine" / "quarantine" / name).read_bytes() == content
        note = json.loads((tmp_path / "mine" / "quarantine" / f"{name}.reason.json").read_text())
        assert "made way" in note["reason"]
    data = (tmp_path / "mine" / manifest(4)).read_bytes()
    assert Manifest.from_file(data, 4).run_id == store.run_id


def test_a_damaged_file_of_the_same_step_is_moved_and_written_anew(tmp_path: Path) -> None:
    store = saved(tmp_path, 4)
    (tmp_path / payload(4)).write_bytes(b"rot")
    store.save(state_at(4))
    assert (tmp_path / "quarantine" / payload(4)).read_bytes() == b"rot"
    assert selected_step(tmp_path) == 4


# --- selecting ---


def test_an_empty_or_missing_directory_is_a_fresh_start(tmp_path: Path) -> None:
    assert open_store(tmp_path).select() is None
    assert open_store(tmp_path / "missing").select() is None
    assert not (tmp_path / "missing").exists()


def test_resuming_adopts_the_run_id(tmp_path: Path) -> None:
    first = saved(tmp_path, 2)
    second = open_store(tmp_path)
    second.select()
    assert second.run_id == first.run_id
    assert second.save(state_at(4)).run_id == first.run_id


def test_an_uncommitted_payload_is_skipped(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4)
    (tmp_path / manifest(4)).unlink()
    assert selected_step(tmp_path) == 2
    assert payload(4) in names(tmp_path)
    found = read_pointer(open_storage(str(tmp_path))).pointer
    assert found is not None
    assert found.step == 2


def test_a_verified_checkpoint_newer_than_the_pointer_is_adopted(tmp_path: Path) -> None:
    store = saved(tmp_path, 2)
    stale = (tmp_path / "latest.json").read_bytes()
    newest = store.save(state_at(4))
    (tmp_path / "latest.json").write_bytes(stale)
    assert selected_step(tmp_path) == 4
    assert read_pointer(open_storage(str(tmp_path))).pointer == newest


def test_a_checkpoint_of_a_newer_version_stops_everything_and_is_left_alone(tmp_path: Path) -> None:
    store = saved(tmp_path, 2, 4)
    record = Manifest.from_file((tmp_path / manifest(4)).read_bytes(), 4)
    newer = record.model_copy(update={"format_version": 99})
    (tmp_path / manifest(4)).write_bytes(newer.to_bytes())
    before = tree(tmp_path)
    with pytest.raises(UnsupportedFormatError, match="format version 99"):
        open_store(tmp_path).select()
    assert tree(tmp_path) == before
    assert not store.confirms(record.pointer())
    (finding, _) = survey(open_storage(str(tmp_path))).checkpoints
    assert (finding.status, finding.step) == ("unverified", 4)


def test_too_little_memory_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 2, 4)
    before = tree(tmp_path)
    words = ("not enough memory", "can't allocate memory", "std::bad_alloc")
    for error in (MemoryError(), *map(RuntimeError, words)):

        def load(*args: object, error: Exception = error, **options: object) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(torch, "load", load)
            with pytest.raises(MemoryError):
                open_store(tmp_path).select()
        assert tree(tmp_path) == before
    assert selected_step(tmp_path) == 4


def hidden_by_an_import() -> ImportError:
    """As importlib makes it where a directory cannot be listed."""
    try:
        try:
            raise OSError(errno.EMFILE, "Too many open files")
        except OSError:
            raise ModuleNotFoundError("No module named 'torch.utils.serialization'") from None
    except ImportError as error:
        return error


def wrapped(error: Exception) -> Exception:
    outer = ValueError("cannot do it")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.EMFILE, "Too many open files", "serialization/__init__.py"),
        OSError(errno.EIO, "Input/output error", "serialization/__init__.py"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/x"),
        hidden_by_an_import(),
        ImportError("cannot import name 'config'"),
        RuntimeError("can't start new thread"),
        wrapped(OSError(errno.ENFILE, "Too many open files in system")),
        wrapped(ImportError("libx.so: cannot open shared object file")),
        pickle.UnpicklingError("in a module: OSError: Too many open files"),
    ],
    ids=str,
)
def test_a_load_that_the_machine_refuses_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    saved(tmp_path, 2, 4)
    before, real, calls = tree(tmp_path), torch.load, 0

    def load(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if always or calls == 1:
            raise trouble
        return real(*args, **options)

    always = True
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(StorageError, match=rf"cannot load .*{payload(4)} here and now: "):
        open_store(tmp_path).select()
    assert tree(tmp_path) == before
    always, calls = False, 0
    assert selected_step(tmp_path) == 4
    assert tree(tmp_path) == before


def test_a_state_that_would_not_load_again_is_never_committed(tmp_path: Path) -> None:
    state = {**state_at(4), "environment": {"torch": torch.__version__}}  # a class of torch's own
    with pytest.raises(TypeError, match="environment/torch: a checkpoint cannot hold a torch"):
        saved(tmp_path, 2).save(state)
    assert names(tmp_path) == sorted([payload(2), manifest(2), "latest.json"])


def test_a_first_save_cut_short_is_a_fresh_start(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    for name in ("latest.json", manifest(2)):
        (tmp_path / name).unlink()
    cut_short = (tmp_path / payload(2)).read_bytes()
    assert open_store(tmp_path).select() is None
    assert names(tmp_path) == ["quarantine"]
    assert (tmp_path / "quarantine" / payload(2)).read_bytes() == cut_short
    [entry] = quarantined(open_storage(str(tmp_path)))
    assert entry.reason == CUT_SHORT
    saved(tmp_path, 2)
    assert selected_step(tmp_path) == 2


def legacy_state() -> dict[str, object]:
    import numpy as np

    return {
        "model": {"w": torch.ones(2)},
        "step": 2,
        "rng": {"numpy": np.random.RandomState(0).get_state()},
    }


def test_a_legacy_store_is_refused_and_named(tmp_path: Path) -> None:
    torch.save(legacy_state(), tmp_path / payload(2))
    before = tree(tmp_path)
    with pytest.raises(LegacyStoreError, match="--trust-legacy") as caught:
        open_store(tmp_path).select()
    assert payload(2) in str(caught.value)
    assert tree(tmp_path) == before


def test_a_legacy_store_is_known_in_spite_of_its_pointer(tmp_path: Path) -> None:
    torch.save(legacy_state(), tmp_path / payload(2))
    (tmp_path / "latest.json").write_text(json.dumps({"step": 2, "file": payload(2)}))
    before = tree(tmp_path)
    with pytest.raises(LegacyStoreError, match="--trust-legacy"):
        open_store(tmp_path).select()
    assert tree(tmp_path) == before


def test_only_bad_ones_is_an_error_that_names_each_and_moves_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4, 6)
    (tmp_path / payload(2)).write_bytes(b"")
    (tmp_path / manifest(4)).write_text("{}")
    (tmp_path / payload(6)).unlink()
    before = tree(tmp_path)
    for _ in range(2):
        with pytest.raises(NoValidCheckpointError) as caught:
            open_store(tmp_path).select()
        for name in (payload(2), manifest(4), manifest(6)):
            assert name in str(caught.value)
        assert "0 bytes, expected" in str(caught.value)
        assert tree(tmp_path) == before


def test_everything_loads_with_weights_only(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    state = torch.load(tmp_path / payload(2), weights_only=True)
    assert state_digest(state) == state_digest(state_at(2))
    assert state["model"]["embedding"].data_ptr() == state["model"]["head"].data_ptr()


# --- what a checkpoint directory must not make a reader do ---


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.write_text, (self.target, "executed")


def with_matching_manifest(root: Path, step: int, content: bytes) -> None:
    """Replace the payload of `step`, and its manifest by one that vouches for it."""
    from speedtronic.checkpoint.digest import bytes_digest
    from speedtronic.checkpoint.records import FileEntry

    entry = FileEntry(name=payload(step), size_bytes=len(content), digest=bytes_digest(content))
    old = Manifest.from_file((root / manifest(step)).read_bytes(), step)
    (root / manifest(step)).write_bytes(old.model_copy(update={"files": [entry]}).to_bytes())
    (root / payload(step)).write_bytes(content)


def test_a_crafted_pickle_is_refused_unexecuted(tmp_path: Path) -> None:
    root, target = tmp_path / "store", tmp_path / "executed"
    saved(root, 2, 4)
    torch.save({**state_at(4), "model": Bomb(target)}, tmp_path / "bomb.pt")
    with_matching_manifest(root, 4, (tmp_path / "bomb.pt").read_bytes())
    assert selected_step(root) == 2
    assert not target.exists()
    note = json.loads((root / "quarantine" / f"{payload(4)}.reason.json").read_text())
    assert "weights_only" in note["reason"]
    torch.load(root / "quarantine" / payload(4), weights_only=False)
    assert target.exists()  # so the bomb was a live one


def test_a_payload_of_another_step_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 2, 4)
    with_matching_manifest(tmp_path, 4, (tmp_path / payload(2)).read_bytes())
    assert selected_step(tmp_path) == 2
    note = json.loads((tmp_path / "quarantine" / f"{payload(4)}.reason.json").read_text())
    assert note["reason"] == "payload holds step 2, expected 4"


def test_a_pointer_that_is_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "store", tmp_path / "outside"
    saved(root, 2, 4)
    (root / "latest.json").rename(outside)
    (root / "latest.json").symlink_to(outside)
    before = outside.read_bytes()
    assert selected_step(root) == 4
    assert not (root / "latest.json").is_symlink()
    assert outside.read_bytes() == before


def test_quarantine_keeps_what_it_has(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    for content in (b"first", b"second"):
        store = open_store(tmp_path)
        store.select()
        store.save(state_at(4))
        (tmp_path / payload(4)).write_bytes(content)
        assert selected_step(tmp_path) == 2
    kept = [p.read_bytes() for p in (tmp_path / "quarantine").glob("step_*.pt")]
    assert sorted(kept) == [b"first", b"second"]
    assert len(list((tmp_path / "quarantine").glob("step_*.pt.reason.json"))) == 2
