"""Absolute targets, the gap at the end, and where the schedule ends, as the reference has them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.cli import main
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.plan import Chunk
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.metrics import read_events
from speedtronic.worker.chunk import ChunkWorker
from tests.recipes import load, newest
from tests.tiny import names, tiny_config, tiny_file, tree

ROOT = Path(__file__).parents[2]


def payloads(output_dir: Path) -> list[int]:
    return [int(n[5:17]) for n in names(output_dir / "checkpoints") if n.endswith(".pt")]


# --- "Absolute target behavior" ---


@pytest.mark.parametrize(
    ("restored", "requested", "updates"), [(0, 10, 10), (4, 10, 6), (10, 10, 0), (12, 10, 0)]
)
def test_absolute_target(tmp_path: Path, restored: int, requested: int, updates: int) -> None:
    config = tiny_config(tmp_path, **{"run.max_steps": 12})
    if restored:
        assert train_from_config(config, max_steps=restored).steps == restored
    before = tree(tmp_path / "checkpoints", without=(".lock",))
    result = train_from_config(config, resume=True, max_steps=requested)
    assert result.steps == max(restored, requested)
    assert result.metrics["updates"] == updates
    assert newest(config).step == max(restored, requested)
    if updates == 0:
        assert tree(tmp_path / "checkpoints", without=(".lock",)) == before
        assert result.final_loss == newest(config).loss


@pytest.mark.parametrize("save_on_stop", [False, True])
@pytest.mark.parametrize("target", [1, 4, 6])
def test_a_reached_target_rewrites_nothing(tmp_path: Path, target: int, save_on_stop: bool) -> None:
    config = tiny_config(tmp_path, **{"checkpoint.save_on_stop": save_on_stop})
    train_from_config(config, max_steps=6)
    before = tree(tmp_path, without=(".lock",))
    for _ in range(2):
        result = train_from_config(config, resume=True, max_steps=target)
        assert (result.steps, result.samples, result.tokens) == (6, 24, 384)
    assert tree(tmp_path, without=(".lock",)) == before


def test_a_reached_target_by_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **{"run.max_steps": 4})
    assert main(["train", "--config", file]) == 0
    before = tree(tmp_path / "run" / "checkpoints", without=(".lock",))
    assert main(["train", "--config", file, "--resume"]) == 0
    assert main(["train", "--config", file, "--resume", "--set", "run.max_steps=2"]) == 0
    assert main(["train", "--config", file, "--resume", "--max-steps", "2"]) == 0
    assert tree(tmp_path / "run" / "checkpoints", without=(".lock",)) == before
    assert capsys.readouterr().out.count("step 4  ") == 4


# --- "Final-step gap" ---


@pytest.mark.parametrize(
    ("final", "save_on_stop", "latest"),
    [
        (1, False, None),
        (3, False, 2),
        (4, False, 4),
        (5, False, 4),
        (1, True, 1),
        (3, True, 3),
        (4, True, 4),
        (5, True, 5),
    ],
)
def test_final_step_gap(tmp_path: Path, final: int, save_on_stop: bool, latest: int | None) -> None:
    config = tiny_config(tmp_path, **{"checkpoint.save_on_stop": save_on_stop})
    result = train_from_config(config, max_steps=final)
    assert result.steps == final
    saved = payloads(tmp_path)
    assert (saved[-1] if saved else None) == latest
    if latest is not None:
        pointer = json.loads((tmp_path / "checkpoints" / "latest.json").read_text())
        assert (pointer["step"], pointer["file"]) == (latest, f"step_{latest:012d}.pt")


def test_a_save_off_the_interval_changes_nothing_of_the_run(tmp_path: Path) -> None:
    plain = tiny_config(tmp_path / "plain")
    train_from_config(plain)
    stopping = tiny_config(tmp_path / "stopping", **{"checkpoint.save_on_stop": True})
    for target in (1, 3, 5, 8):
        assert train_from_config(stopping, resume=True, max_steps=target).steps == target
    assert newest(stopping).state_digest == newest(plain).state_digest
    assert payloads(tmp_path / "stopping") == [5, 6, 8]  # keep_last 3


def test_the_steps_of_the_gap_are_trained_again_to_the_same_end(tmp_path: Path) -> None:
    plain = tiny_config(tmp_path / "plain")
    train_from_config(plain)
    cut = tiny_config(tmp_path / "cut")
    for target in (3, 5, 7, 8):
        train_from_config(cut, resume=True, max_steps=target)
    assert newest(cut).state_digest == newest(plain).state_digest
    events = read_events(tmp_path / "cut" / "metrics.jsonl", "train_step")
    assert [event["step"] for event in events] == list(range(1, 9))


# --- "Two-step resume demonstration" and "Verify a checkpoint" ---

TWO_STEPS = """
speedtronic train \
  --config configs/smoke.yaml \
  --device cpu \
  --output-dir runs/resume-demo \
  --max-steps 2

speedtronic train \
  --config configs/smoke.yaml \
  --device cpu \
  --output-dir runs/resume-demo \
  --max-steps 4 \
  --resume
"""

VERIFY = """
import torch

state = torch.load(
    "runs/resume-demo/checkpoints/step_000000000002.pt",
    map_location="cpu",
    weights_only=False,
)

print(state.keys())
print(state["step"], state["samples"], state["tokens"])
"""

REFERENCE_KEYS = {
    "model",
    "optimizer",
    "scheduler",
    "scaler",
    "step",
    "samples",
    "tokens",
    "config",
    "rng",
    "coordinator",
    "precision",
}


def test_the_demonstration_of_the_reference_page(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    shutil.copy(ROOT / "configs" / "smoke.yaml", tmp_path / "configs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-e", "-c", TWO_STEPS],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        check=True,
        timeout=60,
    )
    checkpoints = tmp_path / "runs" / "resume-demo" / "checkpoints"
    assert [name for name in names(checkpoints) if name.endswith(".pt")] == [
        "step_000000000002.pt",
        "step_000000000004.pt",
    ]
    shown = subprocess.run(
        [sys.executable, "-c", VERIFY],
        cwd=tmp_path,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    keys, counters = shown.stdout.splitlines()
    assert keys.startswith("dict_keys(['")
    assert counters == "2 8 256"
    state = torch.load(checkpoints / "step_000000000004.pt", weights_only=True)
    assert set(state) >= REFERENCE_KEYS
    assert (state["step"], state["samples"], state["tokens"]) == (4, 16, 512)
    assert state["scheduler"]["max_steps"] == 4


# --- where the schedule ends ---


def horizon(config: SpeedtronicConfig) -> int:
    """Where the schedule of the run on disk ends."""
    return int(load(config)["scheduler"]["max_steps"])


def test_a_target_given_to_python_is_only_a_target(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, **{"run.max_steps": 20})
    for target in (2, 4, 30):
        train_from_config(config, resume=True, max_steps=target)
        assert horizon(config) == 20


def test_a_fresh_run_may_name_another_horizon_than_its_target(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, **{"scheduler.max_steps": 20})
    for target in (4, 8):
        assert train_from_config(config, resume=True, max_steps=target).steps == target
        assert horizon(config) == 20


def test_a_target_in_the_configuration_of_a_resumed_run_is_only_a_target(tmp_path: Path) -> None:
    train_from_config(tiny_config(tmp_path), max_steps=4)
    longer = tiny_config(tmp_path, **{"run.max_steps": 12})
    assert train_from_config(longer, resume=True).steps == 12
    assert horizon(longer) == 8


def test_setting_max_steps_is_only_a_target(tmp_path: Path) -> None:
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run")
    config = tiny_config(tmp_path / "run")
    for target, resume in (("4", []), ("10", ["--resume"])):
        command = ["train", "--config", file, "--set", f"run.max_steps={target}", *resume]
        assert main(command) == 0
        assert newest(config).step == int(target)
        assert horizon(config) == 8


def test_max_steps_of_the_command_line_moves_the_horizon_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run")
    config = tiny_config(tmp_path / "run")
    assert main(["train", "--config", file, "--max-steps", "4"]) == 0
    assert horizon(config) == 4
    assert "horizon" not in capsys.readouterr().err
    assert main(["train", "--config", file, "--max-steps", "12", "--resume"]) == 0
    assert (newest(config).step, horizon(config)) == (12, 12)
    assert "horizon moves from step 4 to 12" in capsys.readouterr().err
    assert main(["train", "--config", file, "--max-steps", "12", "--resume"]) == 0
    assert "horizon" not in capsys.readouterr().err


@pytest.mark.parametrize("how", ["python", "command", "worker"])
def test_a_fresh_run_s_target_beyond_the_horizon_becomes_it(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = tiny_config(tmp_path / "run"), ""
    if how == "python":
        with caplog.at_level("INFO", logger="speedtronic"):
            train_from_config(config, max_steps=12)
        said = caplog.text
    elif how == "command":
        file = tiny_file(tmp_path / "run.yaml", tmp_path / "run")
        assert main(["train", "--config", file, "--set", "run.max_steps=12"]) == 0
        said = capsys.readouterr().err
    else:
        lines: list[str] = []
        with ChunkWorker(
            config, target=12, on_log=lambda level, name, message: lines.append(message)
        ) as worker:
            worker.restore()
            for start, target in ((0, 4), (4, 12)):
                worker.train(Chunk(start, target), worker.restore())
        said = "\n".join(lines)
    assert horizon(config) == 12
    assert "the schedule's horizon is the target, step 12: it is beyond run.max_steps, 8" in said
    assert "floor" not in said


@pytest.mark.parametrize(
    ("changes", "target"),
    [({}, 8), ({}, 4), ({"scheduler.max_steps": 8}, 12), ({"scheduler.max_steps": 20}, 30)],
)
def test_a_fresh_run_s_horizon_stays_otherwise(
    tmp_path: Path, changes: dict[str, int], target: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config(tmp_path, **changes)
    with caplog.at_level("INFO", logger="speedtronic"):
        train_from_config(config, max_steps=target)
    assert horizon(config) == changes.get("scheduler.max_steps", 8)
    assert "horizon" not in caplog.text


@pytest.mark.parametrize("how", ["target", "run.max_steps", "fork"])
@pytest.mark.parametrize(
    ("stop", "target", "expected"),
    [
        (4, 12, "steps 9 to 12 are past the schedule's horizon, 8, and will be trained at the"),
        (8, 9, "step 9 is past the schedule's horizon, 8"),
        (8, 8, None),
        (4, 6, None),
    ],
)
def test_a_resume_past_the_horizon_is_warned_of(
    tmp_path: Path,
    how: str,
    stop: int,
    target: int,
    expected: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = tiny_config(tmp_path / "run")
    train_from_config(config, max_steps=stop)
    asked = {"run.max_steps": target} if how == "run.max_steps" else {}
    options: dict[str, Any] = {} if asked else {"target": target}
    if how == "fork":
        options["fork_from"] = (config.checkpoint_dir, stop)
        asked["run.output_dir"] = str(tmp_path / "fork")
    caplog.clear()
    with build_runtime(config.override(asked), resume=how != "fork", **options) as run:
        notes = "\n".join(run.notes)
    if expected is None:
        assert notes == ""
        return
    assert expected in notes and f"--max-steps {target} moves it" in notes and "3e-05" in notes
    assert [record.levelname for record in caplog.records if "floor" in record.message] == [
        "WARNING"
    ]


def test_a_constant_schedule_has_no_floor_to_warn_of(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, **{"scheduler.name": "constant"})
    train_from_config(config)
    with build_runtime(config, resume=True, target=20) as run:
        assert run.notes == []


@pytest.mark.parametrize("explicit", [8, None])
def test_the_horizon_of_the_run_may_be_spelled_out(tmp_path: Path, explicit: int | None) -> None:
    train_from_config(tiny_config(tmp_path), max_steps=4)
    again = tiny_config(tmp_path, **{"scheduler.max_steps": explicit})
    assert train_from_config(again, resume=True).steps == 8
    resolved = SpeedtronicConfig.load(tmp_path / "config.yaml")
    assert resolved.scheduler.max_steps == 8


def test_another_horizon_than_the_run_s_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_from_config(tiny_config(tmp_path / "run"), max_steps=4)
    before = tree(tmp_path / "run", without=(".lock",))
    with pytest.raises(ConfigError, match=r"scheduler\.max_steps is 9.*ends at step 8"):
        train_from_config(tiny_config(tmp_path / "run", **{"scheduler.max_steps": 9}), resume=True)
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **{"scheduler.max_steps": 9})
    assert main(["train", "--config", file, "--resume"]) == 2
    assert "--max-steps" in capsys.readouterr().err
    assert tree(tmp_path / "run", without=(".lock",)) == before


@pytest.mark.parametrize("step", [2, 4, 6])
@pytest.mark.parametrize("max_steps", [8, 99])
def test_the_rate_in_the_optimizer_is_the_schedule_s_after_a_resume(
    tmp_path: Path, step: int, max_steps: int
) -> None:
    train_from_config(tiny_config(tmp_path), max_steps=step)
    with build_runtime(tiny_config(tmp_path, **{"run.max_steps": max_steps}), resume=True) as run:
        schedule = run.state.schedule
        expected = 3e-4 * schedule.factor(step)
        assert (run.state.step, schedule.max_steps) == (step, 8)
        assert {g["lr"] for g in run.state.optimizer.param_groups} == {schedule.lr} == {expected}


def test_tied_weights_share_storage_after_a_resume(tmp_path: Path) -> None:
    train_from_config(tiny_config(tmp_path), max_steps=4)
    with build_runtime(tiny_config(tmp_path), resume=True) as runtime:
        named = dict(runtime.state.model.named_parameters(remove_duplicate=False))
        places = {parameter.data_ptr() for parameter in named.values()}
        assert len(places) == len(named) - 1
