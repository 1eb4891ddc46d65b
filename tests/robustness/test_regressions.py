"""Faults that were found once, each as the shortest way to it."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from speedtronic.checkpoint import CheckpointStore, layout, survey
from speedtronic.checkpoint.quarantine import REASON_SUFFIX, quarantine, quarantined
from speedtronic.errors import StorageError
from speedtronic.storage.local import LocalStorage
from tests.robustness.failpoints import KILLED_AFTER, Failpoints, Killed
from tests.robustness.model import Disk
from tests.robustness.stage import state_at
from tests.tiny import names

PAYLOAD, MANIFEST = layout.payload_name(6), layout.manifest_name(6)
OUT_OF_ORDER = [errno.EACCES, errno.EMFILE, errno.ENOMEM]


def saved(*steps: int) -> Disk:
    disk = Disk()
    store = CheckpointStore(disk, keep_last=3)
    for step in steps:
        store.save(state_at(step))
    return Disk.of(disk.image())


def selected(disk: Disk | Failpoints) -> int | None:
    checkpoint = CheckpointStore(disk, keep_last=3).select()
    return checkpoint and checkpoint.manifest.step


def cut_short(disk: Disk, verb: str, name: str, act: Callable[[CheckpointStore], object]) -> Disk:
    """The disk after `act`, killed right after its first `verb` of `name`."""
    number = 0
    while True:
        start = disk.killed()
        storage = Failpoints(start)
        storage.arm(number, KILLED_AFTER)
        with pytest.raises(Killed):
            act(CheckpointStore(storage, keep_last=3))
        if storage.operations[-1] == (verb, name):
            return start
        number += 1


def in_quarantine(disk: Disk) -> set[str]:
    return set(disk.list(layout.QUARANTINE))


def with_reasons(*files: str) -> set[str]:
    return {*files, *(f"{file}{REASON_SUFFIX}" for file in files)}


@pytest.mark.parametrize("moved", [PAYLOAD, MANIFEST])
def test_a_crash_between_the_two_moves_loses_neither_file_nor_reason(moved: str) -> None:
    """The manifest went first: its payload then passed for an unfinished save, and was deleted."""
    disk = saved(2, 4, 6)
    disk.damage(MANIFEST, b"rot")
    payload = disk.content(PAYLOAD)
    crashed = cut_short(disk, "rename", f"quarantine/{moved}", lambda store: store.select())
    assert selected(crashed) == 4
    assert in_quarantine(crashed) == with_reasons(PAYLOAD, MANIFEST)
    assert crashed.content(f"quarantine/{PAYLOAD}") == payload


def test_no_power_loss_moves_a_file_and_not_its_reason() -> None:
    """Only the root was synced, which makes nothing in quarantine certain."""
    disk = saved(2, 4, 6)
    disk.damage(PAYLOAD, b"rot")
    losses = 0

    def look() -> None:
        nonlocal losses
        for _, cut in disk.power_losses(64, random.Random(0)):
            found = in_quarantine(cut)
            assert {f for f in found if f"{f}{REASON_SUFFIX}" not in found} <= {
                f"{PAYLOAD}{REASON_SUFFIX}",
                f"{MANIFEST}{REASON_SUFFIX}",
            }
            losses += 1

    selected(Failpoints(disk, look))
    assert losses > 50


def test_a_reason_whose_file_never_came_is_not_reported() -> None:
    disk = saved(2, 4, 6)
    note = f"quarantine/{PAYLOAD}{REASON_SUFFIX}"
    crashed = cut_short(
        disk, "rename", note, lambda store: quarantine(store._storage, [PAYLOAD], "a test")
    )
    assert crashed.exists(note)
    assert quarantined(crashed) == survey(crashed).quarantine == []


def test_what_an_unfinished_save_left_goes_with_the_next_one() -> None:
    """A payload between the oldest and the newest checkpoint stayed for ever."""
    disk = saved(2, 4, 6)
    crashed = cut_short(
        disk,
        "rename",
        layout.payload_name(7),
        lambda store: (store.select(), store.save(state_at(7))),
    )
    assert layout.payload_name(7) in crashed.list()
    store = CheckpointStore(crashed, keep_last=3)
    store.select()
    store.save(state_at(8))
    assert sorted(layout.steps_newest_first(crashed.list())) == [4, 6, 8]


def test_another_runs_unfinished_save_is_left_alone() -> None:
    """Retention deleted every old payload without a manifest, whosever it was."""
    foreign = saved(3).content(layout.payload_name(3))
    disk = Disk.of(saved(2, 4, 6).image() | {layout.payload_name(3): foreign})
    store = CheckpointStore(disk, keep_last=1)
    store.select()
    store.save(state_at(8))
    assert disk.content(layout.payload_name(3)) == foreign
    assert 2 not in layout.steps_newest_first(disk.list())


def test_a_state_that_is_to_be_replaced_is_there_until_the_other_is() -> None:
    """It was moved away first; a crash then left keep_last 1 with nothing at all."""
    disk = saved(6)
    before = disk.content(PAYLOAD)
    for name in (f"quarantine/{PAYLOAD}", f"quarantine/{MANIFEST}", PAYLOAD):
        crashed = cut_short(
            disk,
            "rename",
            name,
            lambda store: (store.select(), store.save(state_at(6, fill=0.5))),
        )
        assert MANIFEST not in crashed.list() or PAYLOAD not in crashed.list()
        assert selected(crashed) == 6
        assert crashed.content(PAYLOAD) == before
        assert in_quarantine(crashed) == set()


def test_what_was_rejected_for_damage_is_not_put_back() -> None:
    disk = saved(4, 6)
    quarantine(disk, [PAYLOAD, MANIFEST], "nobody could load it")
    assert selected(disk) == 4
    assert in_quarantine(disk) == with_reasons(PAYLOAD, MANIFEST)


@pytest.mark.parametrize(
    ("verb", "fault"), [("open", "EIO"), ("open", "EACCES"), ("open", "EMFILE"), ("read", "EIO")]
)
def test_one_read_that_fails_does_not_make_a_run_step_back(verb: str, fault: str) -> None:
    fired = 0
    for number in range(30):
        disk = saved(2, 4, 6)
        storage = Failpoints(disk)
        storage.arm(number, fault)
        with suppress(StorageError):  # said aloud is well too, for then nothing was changed
            assert selected(storage) == 6
        assert in_quarantine(disk) == set()
        assert selected(disk) == 6
        fired += storage.fired == verb
    assert fired > 2


@pytest.mark.parametrize("name", [PAYLOAD, MANIFEST])
def test_a_file_that_the_disk_cannot_give_back_is_damaged(name: str) -> None:
    storage = Failpoints(saved(2, 4, 6))
    storage.refuse("read", name, code=errno.EIO)
    assert selected(storage) == 4
    assert {entry.file for entry in quarantined(storage)} == {
        f"quarantine/{PAYLOAD}",
        f"quarantine/{MANIFEST}",
    }


@pytest.mark.parametrize("code", OUT_OF_ORDER)
@pytest.mark.parametrize("name", [PAYLOAD, MANIFEST, layout.POINTER])
def test_a_machine_in_trouble_is_no_damage(name: str, code: int) -> None:
    disk = saved(2, 4, 6)
    before = disk.image()
    storage = Failpoints(disk)
    storage.refuse("open", name, code=code)
    with pytest.raises(StorageError):
        selected(storage)
    assert disk.image() == before


def test_a_quarantine_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    elsewhere.mkdir()
    store = CheckpointStore(LocalStorage(root), keep_last=3)
    for step in (2, 4, 6):
        store.save(state_at(step))
    (root / layout.QUARANTINE).symlink_to(elsewhere)
    (root / PAYLOAD).write_bytes(b"rot")
    with pytest.raises(StorageError, match="link"):
        CheckpointStore(LocalStorage(root), keep_last=3).select()
    assert names(elsewhere) == []
    assert (root / PAYLOAD).read_bytes() == b"rot"


def test_a_save_that_is_repeated_makes_the_names_of_the_first_try_durable() -> None:
    """The pointer stood already, byte for byte, so nothing synced the folder any more."""
    refused, number = 0, 0
    while True:
        disk = saved(2, 4, 6)
        storage = Failpoints(disk)
        store = CheckpointStore(storage, keep_last=3)
        store.select()
        disk.damage(PAYLOAD, b"rot")
        storage.arm(number, "ENOSPC")
        try:
            store.save(state_at(6))
        except StorageError:
            store.save(state_at(6))
        if not storage.fired:
            break
        refused += storage.fired == "sync_folder"
        for _, cut in disk.power_losses(4, random.Random(number)):
            assert selected(cut) == 6, f"operation {number}: {storage.fired}"
        number += 1
    assert refused > 2
