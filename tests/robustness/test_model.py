"""The disk that forgets keeps to its own rules; a model that is too kind proves nothing."""

import random
from collections.abc import Callable

import pytest

from tests.robustness.model import BLOCK, Disk

OLD, NEW = b"o" * BLOCK, b"n" * (2 * BLOCK)


def outcomes(act: Callable[[Disk], object], start: dict[str, bytes] | None = None) -> list[dict]:
    """The different disks that a power loss right after `act` can leave."""
    disk = Disk.of(start or {})
    act(disk)
    found: list[dict[str, bytes]] = []
    for _, cut in disk.power_losses(10_000, random.Random(0)):
        if cut.image() not in found:
            found.append(cut.image())
    return found


def write(disk: Disk, name: str, content: bytes, *, sync: bool) -> None:
    file = disk.create(name)
    file.write(content)
    if sync:
        disk.sync(file)


def test_bytes_that_were_not_synced_are_kept_dropped_torn_or_zeroed() -> None:
    def act(disk: Disk) -> None:
        write(disk, "a", NEW, sync=False)
        disk.sync_folder()

    half, zero = NEW[:BLOCK], bytes(BLOCK)
    expected = [NEW, b"", half, zero + zero, zero + half, half + zero]
    assert sorted(d["a"] for d in outcomes(act)) == sorted(expected)


def test_a_synced_file_is_whole_but_may_have_no_name() -> None:
    def act(disk: Disk) -> None:
        write(disk, "a", NEW, sync=True)

    assert outcomes(act) == [{"a": NEW}, {}]


def test_after_both_syncs_nothing_can_be_lost() -> None:
    def act(disk: Disk) -> None:
        write(disk, "a", NEW, sync=True)
        disk.rename("a", "b")
        disk.sync_folder()

    assert outcomes(act, {"b": OLD}) == [{"b": NEW}]


def test_a_rename_happens_whole_or_not_at_all_and_may_leave_its_bytes_behind() -> None:
    def act(disk: Disk) -> None:
        write(disk, "a", NEW, sync=False)
        disk.sync_folder()
        disk.rename("a", "b")

    found = outcomes(act, {"b": OLD})
    assert {"b": b""} in found
    assert {"a": NEW, "b": OLD} in found
    assert all(("a" in image) == (image["b"] == OLD) for image in found)


def test_changes_of_names_are_lost_one_by_one_and_in_any_order() -> None:
    def act(disk: Disk) -> None:
        disk.delete("a")
        disk.delete("b")

    found = outcomes(act, {"a": OLD, "b": OLD})
    assert sorted(sorted(image) for image in found) == [[], ["a"], ["a", "b"], ["b"]]


def test_a_move_is_certain_with_the_folder_that_it_goes_to() -> None:
    def moved(disk: Disk, *folders: str) -> None:
        disk.rename("a", "sub/a")
        for folder in folders:
            disk.sync_folder(folder)

    assert outcomes(lambda disk: moved(disk, "sub"), {"a": OLD}) == [{"sub/a": OLD}]
    assert len(outcomes(lambda disk: moved(disk, ""), {"a": OLD})) == 2


@pytest.mark.parametrize("again", [False, True], ids=["once", "tried again"])
def test_a_failed_sync_makes_nothing_certain_however_often_it_is_tried(again: bool) -> None:
    def act(disk: Disk) -> None:
        file = disk.create("a")
        file.write(OLD)
        disk.sync_failed(file)
        if again:
            disk.sync(file)
        disk.sync_folder()

    assert {"a": b""} in outcomes(act)


def test_a_kill_loses_nothing() -> None:
    disk = Disk()
    write(disk, "a", NEW, sync=False)
    assert disk.killed().image() == {"a": NEW}


def test_beyond_the_bound_outcomes_are_drawn_and_each_kind_is_among_them() -> None:
    disk = Disk()
    for name in "abcdef":
        write(disk, name, NEW, sync=False)
    found = list(disk.power_losses(64, random.Random(0)))
    assert len(found) == 64
    kinds = set().union(*(kinds for kinds, _ in found))
    assert kinds == {
        "name kept",
        "name dropped",
        "bytes kept",
        "bytes dropped",
        "bytes torn",
        "bytes zeroed",
    }
