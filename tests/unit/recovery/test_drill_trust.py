"""Looking at a run imports nothing that lies there; a drill runs only what the user has written."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from speedtronic.recovery import LoadProcess, run_checklist
from speedtronic.recovery.drill_trust import named_code, reason_for_distrust
from speedtronic.runtime import train_from_config
from tests.tiny import tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trust") / "run"
    train_from_config(tiny_config(directory), max_steps=4)
    return directory


def test_ones_own_run_is_trusted(run: Path) -> None:
    assert reason_for_distrust(run) == ""
    assert reason_for_distrust(run / "missing") == ""


@pytest.mark.parametrize("name", [".", "config.yaml"])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o666])
def test_what_others_can_write_is_not(name: str, mode: int, run: Path) -> None:
    path = run / name
    before = path.stat().st_mode
    path.chmod(mode | (0o100 if path.is_dir() else 0))
    try:
        assert reason_for_distrust(run).startswith(
            f"{path.resolve()} can be written by other users ("
        )
    finally:
        path.chmod(before)


def test_what_belongs_to_another_user_is_not(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert (
        reason_for_distrust(run) == f"{run} belongs to user {os.getuid()}, the drill runs as 4711"
    )


@pytest.mark.parametrize("drill", ["replay", "resume"])
def test_a_drill_refuses_what_it_cannot_trust(drill: str, run: Path) -> None:
    (run / "config.yaml").chmod(0o666)
    try:
        finding = run_checklist(str(run), drill=drill).findings[-1]
    finally:
        (run / "config.yaml").chmod(0o644)
    assert (finding.check, finding.status) == (drill, "failed")
    assert "can be written by other users" in finding.found
    assert finding.action == "take it over, or give --config FILE"


def test_with_a_configuration_given_it_is_the_givers(run: Path) -> None:
    (run / "config.yaml").chmod(0o666)
    try:
        report = run_checklist(str(run), drill="resume", config=tiny_config(run))
    finally:
        (run / "config.yaml").chmod(0o644)
    assert report.findings[-1].status == "ok", report.findings[-1]


def test_a_drill_says_what_it_runs(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny_config(run, **{"data.dataset": "tests.own_parts:augmented"})
    assert named_code(config) == ["data.dataset tests.own_parts:augmented"]
    with caplog.at_level(logging.WARNING):
        run_checklist(str(run), drill="resume", config=config)
    said = f"a drill of {run} runs what its configuration names: data.dataset tests.own_parts:"
    assert said in caplog.text


def test_looking_imports_nothing_from_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = run / "imported"
    for name in ("xxhash", "torch", "pydantic"):
        (run / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\n")
    monkeypatch.chdir(run)
    with LoadProcess() as loader:
        assert run_checklist(".", loader=loader).selected == 4
    command = [Path(sys.executable).with_name("speedtronic"), "inspect", "."]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert not trace.exists()
