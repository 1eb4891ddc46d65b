"""The survey that `inspect` shows: a status for each checkpoint, and nothing changed."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from speedtronic.checkpoint import layout, open_storage, survey
from speedtronic.checkpoint.survey import Survey
from tests.tiny import tree
from tests.unit.checkpoint.states import open_store, selected_step, state_at


def save(root: Path, *steps: int) -> None:
    store = open_store(root)
    for step in steps:
        store.save(state_at(step))


def surveyed(root: Path) -> Survey:
    """The survey, which must leave every byte and time alone."""
    before = tree(root)
    found = survey(open_storage(str(root)))
    assert tree(root) == before
    json.dumps(found.to_dict())
    return found


def statuses(found: Survey) -> dict[int, str]:
    return {c.step: c.status for c in found.checkpoints}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Every status there is, except that of a legacy store."""
    root = tmp_path / "mine"
    save(root, 2, 4, 6, 8)
    save(tmp_path / "other", 10)
    for name in (layout.payload_name(10), layout.manifest_name(10)):
        shutil.copy(tmp_path / "other" / name, root)
    (root / layout.manifest_name(8)).unlink()
    data = bytearray((root / layout.payload_name(6)).read_bytes())
    data[len(data) // 2] ^= 1
    (root / layout.payload_name(6)).write_bytes(data)
    (root / "step_12.pt").write_text("not ours")
    return root


def test_every_status(mixed: Path) -> None:
    found = surveyed(mixed)
    assert statuses(found) == {
        10: "foreign",
        8: "uncommitted",
        6: "corrupt",
        4: "verified",
        2: "verified",
    }
    assert found.selected == 4 == selected_step(mixed)
    assert found.pointer_problem == "stale: names step 8"
    reasons = {c.step: c.reason for c in found.checkpoints}
    assert reasons[10].startswith("of run ")
    assert reasons[8] == "it has no manifest"
    assert "payload is damaged: expected xxh3_128:" in reasons[6]
    assert reasons[4] == ""


def test_fields(mixed: Path) -> None:
    good = surveyed(mixed).to_dict()["checkpoints"][3]
    assert good.keys() == {
        "step", "file", "status", "reason", "size_bytes", "digest", "state_digest", "samples",
        "tokens",
    }  # fmt: skip
    assert (good["file"], good["samples"], good["tokens"]) == ("step_000000000004.pt", 16, 256)
    assert good["size_bytes"] == (mixed / good["file"]).stat().st_size


def test_what_is_in_quarantine(mixed: Path) -> None:
    assert surveyed(mixed).quarantine == []
    selected_step(mixed)
    found = surveyed(mixed)
    assert [q.file for q in found.quarantine] == [
        "quarantine/step_000000000006.json",
        "quarantine/step_000000000006.pt",
    ]
    assert all("payload is damaged" in q.reason for q in found.quarantine)
    assert found.to_dict()["quarantine"][1].keys() == {"file", "reason"}
    assert found.pointer_problem == ""
    assert 6 not in statuses(found)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"7", b"\xff", b"[" * 100_000])
def test_an_unreadable_reason_says_so(tmp_path: Path, content: bytes) -> None:
    save(tmp_path, 2)
    (tmp_path / "quarantine").mkdir()
    (tmp_path / "quarantine" / "step_000000000004.pt").write_bytes(b"rot")
    (tmp_path / "quarantine" / "step_000000000004.pt.reason.json").write_bytes(content)
    [entry] = surveyed(tmp_path).quarantine
    assert entry.reason == "step_000000000004.pt.reason.json cannot be read"


def test_a_legacy_store_is_unverified(tmp_path: Path) -> None:
    torch.save({"step": 2}, tmp_path / layout.payload_name(2))
    found = surveyed(tmp_path)
    assert statuses(found) == {2: "unverified"}
    assert found.selected is None


def test_an_empty_directory_and_none(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        found = surveyed(root)
        assert (found.pointer, found.selected, found.checkpoints) == (None, None, [])


def test_without_a_pointer_the_newest_verified_names_the_run(mixed: Path) -> None:
    (mixed / "latest.json").unlink()
    (mixed / layout.payload_name(10)).write_bytes(b"rot")  # else the other run's would be chosen
    found = surveyed(mixed)
    assert found.selected == 4 == selected_step(mixed)


def test_a_damaged_pointer_is_a_problem_and_changes_no_choice(mixed: Path) -> None:
    (mixed / "latest.json").write_text("{")
    found = surveyed(mixed)
    assert found.pointer is None
    assert found.pointer_problem.startswith("pointer is not JSON")
