"""The command line: what it prints, in which words, and with which exit code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedtronic import cli
from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.cli import main
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import NonFiniteError, StorageFullError
from speedtronic.runtime import train_from_config
from tests.tiny import tiny_config, tiny_file, tree

Capture = pytest.CaptureFixture[str]
SMOKE = str(Path(__file__).parents[3] / "configs" / "smoke.yaml")


# --- validate ---


def test_validate_prints_the_configuration_in_full(capsys: Capture) -> None:
    assert main(["validate", "--config", SMOKE, "--set", "optimizer.betas=[0.8, 0.9]"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    expected = SpeedtronicConfig.load(SMOKE).override({"optimizer.betas": [0.8, 0.9]})
    assert shown == expected.to_dict()
    assert SpeedtronicConfig.from_dict(shown) == expected


def test_validate_shows_no_secret_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    secret = "checkpoint.directory=s3://me:hunter2@host/bucket"
    assert main(["validate", "--config", SMOKE, "--set", secret, "--set", "max_steps=7"]) == 0
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert yaml.safe_load(shown)["run"]["max_steps"] == 7
    assert list(tmp_path.iterdir()) == []


# --- train ---


def test_train_tells_how_it_ended(tmp_path: Path, capsys: Capture) -> None:
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run")
    assert main(["train", "--config", file, "--device", "cpu"]) == 0
    said = capsys.readouterr()
    [line] = said.out.splitlines()
    assert line.startswith("step 8  samples 32  tokens 512  loss ")
    assert line.endswith(f"  {tmp_path / 'run'}")
    assert "step 8/8  loss " in said.err


def test_train_writes_the_resolved_configuration(tmp_path: Path) -> None:
    file = tiny_file(tmp_path / "run.yaml", "elsewhere")
    run = tmp_path / "run"
    assert main(["train", "--config", file, "--output-dir", str(run), "--max-steps", "2"]) == 0
    resolved = SpeedtronicConfig.load(run / "config.yaml")
    expected = tiny_config(run, **{"run.max_steps": 2, "scheduler.max_steps": 2})
    assert resolved.to_dict() == expected.to_dict()


def test_a_run_can_be_resumed_by_its_own_resolved_configuration(tmp_path: Path) -> None:
    train_from_config(tiny_config(tmp_path), max_steps=4)
    assert main(["train", "--config", str(tmp_path / "config.yaml"), "--resume"]) == 0
    assert (tmp_path / "checkpoints" / "step_000000000008.pt").exists()


def test_log_messages_go_to_a_file_too(tmp_path: Path) -> None:
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **{"logging.file": "logs/run.log"})
    for flags in ([], ["--resume"]):
        assert main(["train", "--config", file, *flags]) == 0
    text = (tmp_path / "run" / "logs" / "run.log").read_text()
    assert "step 8/8" in text
    assert ": resuming run " in text


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (NonFiniteError("the loss is nan"), 1, "speedtronic: the loss is nan"),
        (StorageFullError("no space left"), 1, "speedtronic: no space left"),
        (ValueError("odd"), 1, "speedtronic: ValueError: odd (--debug shows where)"),
        (KeyboardInterrupt(), 130, "speedtronic: stopped by Ctrl-C; --resume goes on"),
        (cli._Stopped(15), 143, "speedtronic: stopped by SIGTERM; --resume goes on"),
        (cli._Stopped(1), 129, "speedtronic: stopped by SIGHUP; --resume goes on"),
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_a_failure_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    tmp_path: Path,
    error: BaseException,
    code: int,
    line: str,
    debug: bool,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr("speedtronic.runtime.build.train_from_config", fail)
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run")
    assert main(["train", "--config", file, *(["--debug"] if debug else [])]) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == line
    assert ("Traceback (most recent call last):" in lines) == (debug and code == 1)
    assert debug or len(lines) == 1


# --- inspect ---


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints 2, 4, 6 and 8 of a run: one verified, the others corrupt, foreign and so on."""
    other = tmp_path / "other"
    train_from_config(tiny_config(other, **{"run.seed": 9}), max_steps=2)
    root = tmp_path / "run"
    train_from_config(tiny_config(root, **{"checkpoint.keep_last": None}))
    checkpoints = root / "checkpoints"
    for kind in ("pt", "json"):
        shutil.copy(other / f"checkpoints/step_000000000002.{kind}", checkpoints)
    (checkpoints / "step_000000000006.pt").write_bytes(b"rot")
    (checkpoints / "step_000000000008.json").unlink()
    return root


STATUSES = {8: "uncommitted", 6: "corrupt", 4: "verified", 2: "foreign"}


def inspected(directory: Path, capsys: Capture) -> dict[str, Any]:
    before = tree(directory)
    assert main(["inspect", str(directory), "--json"]) == 0
    assert tree(directory) == before
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_inspect_json(run: Path, capsys: Capture) -> None:
    found = inspected(run, capsys)
    assert found.keys() >= {"pointer", "selected", "checkpoints", "quarantine"}
    assert {c["step"]: c["status"] for c in found["checkpoints"]} == STATUSES
    assert found["selected"] == 4
    assert found["pointer"]["step"] == 8
    for c in found["checkpoints"]:
        assert list(c) == [
            "step", "file", "status", "reason", "size_bytes", "digest", "state_digest", "samples",
            "tokens",
        ]  # fmt: skip
        assert (c["reason"] == "") == (c["status"] == "verified")
    assert inspected(run / "checkpoints", capsys) == found


def test_inspect_shows_the_quarantine(run: Path, capsys: Capture) -> None:
    assert inspected(run, capsys)["quarantine"] == []
    CheckpointStore(open_storage(str(run / "checkpoints")), keep_last=None).select()
    found = inspected(run, capsys)
    names = ["quarantine/step_000000000006.json", "quarantine/step_000000000006.pt"]
    assert [entry["file"] for entry in found["quarantine"]] == names
    assert main(["inspect", str(run)]) == 0
    shown = capsys.readouterr().out
    for entry in found["quarantine"]:
        assert f"in quarantine: {entry['file']}: {entry['reason']}" in shown


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_inspect_as_text_cuts_no_digest_short(
    run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    found = inspected(run, capsys)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["inspect", str(run)]) == 0
    shown = capsys.readouterr().out
    for c in found["checkpoints"]:
        assert f"{c['step']}  {c['status']}" in " ".join(shown.split(" ")).replace("   ", "  ")
        assert c["state_digest"] is None or c["state_digest"] in shown
    assert "latest.json: stale: names step 8" in shown
    assert shown.endswith("a resume would start from: step 4\n")


def test_inspect_exits_0_whatever_it_shows(tmp_path: Path, capsys: Capture) -> None:
    found = inspected(tmp_path, capsys)
    assert (found["pointer"], found["selected"], found["checkpoints"]) == (None, None, [])
    assert main(["inspect", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "no checkpoints\n\nlatest.json: missing\na resume would start from: nothing\n"
    )
    (tmp_path / "latest.json").write_text("{")
    (tmp_path / "step_000000000002.pt").write_text("")
    assert [c["status"] for c in inspected(tmp_path, capsys)["checkpoints"]] == ["unverified"]


def test_inspect_finds_the_checkpoints_of_a_run_whose_configuration_is_damaged(
    run: Path, capsys: Capture
) -> None:
    (run / "config.yaml").write_text("run: [")
    assert main(["inspect", str(run), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["selected"] == 4
    assert "config.yaml: line 1" in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--confg", SMOKE], "unrecognized argument --confg; did you mean --config?"),
        (["train", "--config", SMOKE, "--max-step=4", "--resum3"], "did you mean --resume?"),
        (["verify", "runs/a", "--jsn"], "unrecognized argument --jsn; did you mean --json?"),
        (["inspect", "runs/a", "--colour"], "unrecognized argument --colour\n"),
        (["train", "--resume"], "the following arguments are required: --config"),
    ],
)
def test_a_misspelt_option_is_named_first(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
