"""A crash before, in and after every storage operation, and what a new process then finds."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from speedtronic.checkpoint import CheckpointStore, Pointer, layout, open_storage, survey
from speedtronic.checkpoint.candidates import read_pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.storage.names import is_temporary
from tests.tiny import names
from tests.unit.checkpoint.faults import Crash, FaultyStorage
from tests.unit.checkpoint.states import open_store, state_at

BEFORE_AND_AFTER = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
Act = Callable[[CheckpointStore], object]


def crash_everywhere(
    start: Path, scratch: Path, act: Act, check: Callable[[Path], None], *, after: bool
) -> int:
    """Run `act` on copies of `start`, dying at its first operation, its second, and so on.

    Returns:
        The number of crashes: that of the operations that `act` makes.
    """
    number = 0
    while True:
        root = scratch / f"crash-{number}"
        shutil.copytree(start, root)
        storage = FaultyStorage(root)
        store = CheckpointStore(storage, keep_last=2)
        storage.die_at(number, after=after)
        try:
            act(store)
        except Crash:
            check(root)
            number += 1
            continue
        assert not storage.dead
        return number


def verified(root: Path) -> int:
    """The step selected, its content being what was saved; asking twice gives the same answer."""
    steps = []
    for _ in range(2):
        checkpoint = open_store(root).select()
        assert checkpoint is not None
        assert junk(root) == []
        step = checkpoint.manifest.step
        assert state_digest(checkpoint.state) == state_digest(state_at(step))
        pointer = read_pointer(open_storage(str(root))).pointer
        assert pointer == checkpoint.manifest.pointer()
        steps.append(step)
    assert steps[0] == steps[1]
    return steps[0]


def goes_on(root: Path, step: int) -> None:
    """The next save works, and leaves nothing behind but checkpoints."""
    store = open_store(root, keep_last=2)
    store.select()
    store.save(state_at(step))
    assert junk(root) == []
    assert verified(root) == step


def junk(root: Path) -> list[str]:
    return [name for name in names(root) if is_temporary(name)]


@BEFORE_AND_AFTER
def test_a_save_cut_short_leaves_the_last_one_or_itself(tmp_path: Path, after: bool) -> None:
    start = tmp_path / "start"
    first = open_store(start)
    for step in (2, 4):
        first.save(state_at(step))

    def resume_and_save(store: CheckpointStore) -> None:
        assert store.select() is not None
        store.save(state_at(6))

    found: list[int] = []

    def check(root: Path) -> None:
        # Nothing is half there: what has a manifest is whole, the deleted ones included.
        statuses = {c.status for c in survey(open_storage(str(root))).checkpoints}
        assert statuses <= {"verified", "uncommitted"}
        found.append(verified(root))
        goes_on(root, 8)

    crashes = crash_everywhere(start, tmp_path, resume_and_save, check, after=after)
    assert crashes > 30
    # Once the new one can be selected, it can be from there on.
    assert found == sorted(found)
    assert set(found) == {4, 6}


@BEFORE_AND_AFTER
def test_a_first_save_cut_short_is_a_fresh_start_or_itself(tmp_path: Path, after: bool) -> None:
    start = tmp_path / "start"
    start.mkdir()
    found: list[bool] = []

    def check(root: Path) -> None:
        answers = [open_store(root).select() is not None for _ in range(2)]
        assert answers[0] == answers[1]
        found.append(answers[0])
        goes_on(root, 2)

    crash_everywhere(start, tmp_path, lambda store: store.save(state_at(2)), check, after=after)
    assert found == sorted(found)
    assert set(found) == {False, True}


@BEFORE_AND_AFTER
def test_a_repair_cut_short_loses_nothing(tmp_path: Path, after: bool) -> None:
    start = tmp_path / "start"
    store = open_store(start)
    for step in (2, 4, 6):
        store.save(state_at(step))
    bad = {layout.payload_name(6): b"rot", "latest.json": b"{"}
    for name, content in bad.items():
        (start / name).write_bytes(content)
    bad[layout.manifest_name(6)] = (start / layout.manifest_name(6)).read_bytes()

    def check(root: Path) -> None:
        assert verified(root) == 4
        kept = {file.read_bytes() for file in root.rglob("*") if file.is_file()}
        assert set(bad.values()) <= kept
        goes_on(root, 6)

    crashes = crash_everywhere(start, tmp_path, lambda store: store.select(), check, after=after)
    assert crashes > 20


def test_retention_cut_short_is_finished_by_the_next_save(tmp_path: Path) -> None:
    start = tmp_path / "start"
    store = open_store(start)
    for step in (2, 4, 6):
        store.save(state_at(step))
    payload = (start / layout.payload_name(4)).read_bytes()
    storage = FaultyStorage(start)
    store = CheckpointStore(storage, keep_last=1)
    store.run_id = Pointer.from_bytes((start / "latest.json").read_bytes()).run_id
    storage.operations.clear()
    store.save(state_at(8))
    assert len([op for op in storage.operations if op[0] == "delete"]) == 6
    assert names(start) == ["latest.json", layout.manifest_name(8), layout.payload_name(8)]

    (start / layout.payload_name(4)).write_bytes(payload)  # its manifest is deleted already
    again = open_store(start, keep_last=1)
    again.run_id = store.run_id
    again.save(state_at(10))
    assert names(start) == ["latest.json", layout.manifest_name(10), layout.payload_name(10)]
