"""A run that version 3.1.0 left goes on as it would have there."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.run_of_3_1.make import HERE, machine, outcome, speedtronic

EXPECTED = json.loads((HERE / "expected.json").read_text())
NEWEST = "run/checkpoints/step_{:012}.json"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the run, with what it trains on."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("text.txt", "train.yaml"):
        shutil.copy(HERE / name, copy)
    shutil.copytree(HERE / "run", copy / "run")
    return copy


@pytest.fixture(scope="module")
def before(directory: Path) -> dict[str, Any]:
    return outcome(directory)


@pytest.fixture(scope="module")
def after(directory: Path, before: dict[str, Any]) -> dict[str, Any]:
    speedtronic(directory, "train", "--config", "train.yaml", "--resume")
    return outcome(directory)


def manifest(directory: Path, step: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / NEWEST.format(step)).read_text())
    return found


def findings(verified: dict[str, Any]) -> list[tuple[str, ...]]:
    """Each finding without the directory that it was made in."""
    return [
        (each["check"], each["status"], Path(each["path"]).name, each["found"], each["expected"])
        for each in verified["findings"]
    ]


def test_it_is_inspected_and_verified_as_before(before: dict[str, Any]) -> None:
    expected = EXPECTED["before"]
    assert before["inspect"] == expected["inspect"]
    assert before["files"] == expected["files"]
    moved = findings(before["verify"])
    assert moved[1:] == findings(expected["verify"])[1:]
    assert moved[0][:3] == ("directory", "warning", "run.json"), "it is a copy, and says so"


def test_it_ends_in_the_same_state(after: dict[str, Any]) -> None:
    expected = EXPECTED["after"]
    assert after["losses"] == pytest.approx(expected["losses"], abs=1e-5)
    if machine() == EXPECTED["machine"]:  # on another the last bits may differ
        assert after["losses"] == expected["losses"]
        pointer, wanted = after["inspect"]["pointer"], expected["inspect"]["pointer"]
        assert pointer["state_digest"] == wanted["state_digest"]


def test_it_leaves_the_same_files(directory: Path, after: dict[str, Any]) -> None:
    expected = EXPECTED["after"]
    assert after["files"] == expected["files"]
    assert manifest(directory, 12).keys() == manifest(directory, 24).keys()
    for verified in (after, expected):
        assert verified["verify"].keys() == {"run_dir", "healthy", "selected", "findings"}
    for now, then in zip(
        after["inspect"]["checkpoints"], expected["inspect"]["checkpoints"], strict=True
    ):
        assert now.keys() == then.keys()
        assert (now["step"], now["file"], now["status"]) == (
            then["step"], then["file"], then["status"],
        )  # fmt: skip
