"""What is deleted from a real directory, and what no setting of retention can touch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, layout, open_storage
from speedtronic.checkpoint.candidates import candidates
from speedtronic.checkpoint.retention import pin, pinned, unpin
from speedtronic.errors import RunLockedError
from tests.tiny import names
from tests.unit.checkpoint.states import open_store, state_at


def steps(root: Path) -> list[int]:
    """The committed steps, oldest first."""
    return [c.step for c in candidates(open_storage(str(root))) if c.committed][::-1]


def store_in(root: Path, **retention: Any) -> CheckpointStore:
    return CheckpointStore(open_storage(str(root)), **{"keep_last": 1, **retention})


def save(store: CheckpointStore, *at: int) -> None:
    for step in at:
        store.save(state_at(step))


def test_what_this_process_has_verified_is_kept_until_another_one_was(tmp_path: Path) -> None:
    save(store_in(tmp_path), 2, 4)
    resumed = store_in(tmp_path)
    assert resumed.select() is not None
    save(resumed, 6, 8)
    assert steps(tmp_path) == [4, 8]
    again = store_in(tmp_path)
    assert again.select() is not None
    save(again, 10)
    assert steps(tmp_path) == [8, 10]


def test_if_all_that_was_written_since_is_rotten_the_verified_one_is_there(tmp_path: Path) -> None:
    save(store_in(tmp_path), 2)
    resumed = store_in(tmp_path)
    assert resumed.select() is not None
    save(resumed, 4, 6)
    (tmp_path / layout.payload_name(6)).write_bytes(b"what a disk made of it")
    checkpoint = open_store(tmp_path).select()
    assert checkpoint is not None
    assert checkpoint.manifest.step == 2


def test_a_pin_holds_until_it_is_taken_away(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    save(store, 2)
    storage = open_storage(str(tmp_path))
    pin(storage, 2, "until the resumed run is validated")
    save(store, 4, 6)
    assert steps(tmp_path) == [2, 6]
    assert pinned(storage) == {2: "until the resumed run is validated"}
    unpin(storage, 2)
    unpin(storage, 2)
    save(store, 8)
    assert steps(tmp_path) == [8]
    assert pinned(storage) == {}


def test_a_pin_that_cannot_be_read_holds_too(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    save(store, 2)
    (tmp_path / layout.pin_name(2)).write_bytes(b"\xff{")
    save(store, 4)
    assert steps(tmp_path) == [2, 4]
    assert pinned(open_storage(str(tmp_path))) == {2: "unknown"}


def test_milestones_and_the_best_are_kept_besides(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_best=1, keep_every=4)
    for step, val_loss in [(2, 0.5), (3, 0.1), (4, 0.9), (6, 0.7), (8, 0.8), (9, 0.6)]:
        store.save({**state_at(step), "val_loss": val_loss, "validated_at": step})
    assert steps(tmp_path) == [3, 4, 8, 9]


def test_a_payload_left_by_a_deletion_is_deleted_only_if_it_is_this_runs(tmp_path: Path) -> None:
    store = store_in(tmp_path, keep_last=2)
    save(store, 2)
    mine = (tmp_path / layout.payload_name(2)).read_bytes()
    save(store_in(tmp_path / "other"), 1)
    others = (tmp_path / "other" / layout.payload_name(1)).read_bytes()
    save(store, 4, 6, 8)
    (tmp_path / layout.payload_name(2)).write_bytes(mine)
    (tmp_path / layout.payload_name(1)).write_bytes(others)
    (tmp_path / layout.payload_name(3)).write_bytes(b"of someone who gave it such a name")
    torch.save({"step": 5}, tmp_path / layout.payload_name(5))
    save(store, 10)
    left = {name for name in names(tmp_path) if name.endswith(".pt")}
    assert left == {layout.payload_name(step) for step in (1, 3, 5, 8, 10)}


def test_nothing_is_deleted_once_the_lock_is_lost(tmp_path: Path) -> None:
    held = [True]

    def fence() -> None:
        if not held[0]:
            raise RunLockedError("another process has the run")

    store = store_in(tmp_path, fence=fence)
    save(store, 2)
    held[0] = False
    before = names(tmp_path)
    with pytest.raises(RunLockedError):
        save(store, 4)
    assert names(tmp_path) == before
