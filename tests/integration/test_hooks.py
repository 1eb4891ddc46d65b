"""Hooks named in a configuration: each step once after kills, and the same state as without."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.runtime import train_from_config
from speedtronic.training.metrics import read_events
from tests.logged import tensorboard_scalars, wandb_rows
from tests.recipes import newest
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[2]
Losses = list[tuple[int, float]]


def tensorboard_losses(folder: Path) -> Losses:
    return tensorboard_scalars(folder)["loss"]


def wandb_losses(folder: Path) -> Losses:
    return [(row["_step"], row["loss"]) for row in wandb_rows(folder)]


BUILT_IN: dict[str, Callable[[Path], Losses]] = {
    "tensorboard": tensorboard_losses,
    "wandb": wandb_losses,
}


@pytest.fixture(scope="module")
def without_hooks(tmp_path_factory: pytest.TempPathFactory) -> SpeedtronicConfig:
    config = tiny_config(tmp_path_factory.mktemp("without"))
    train_from_config(config)
    return config


def train_and_be_killed(config: SpeedtronicConfig, step: int) -> None:
    """Train in a process that ends by SIGKILL after an update, before its checkpoint."""
    code = (
        "import json, os, signal, sys\n"
        "from speedtronic.runtime.build import train_from_config\n"
        "def on_step(step):\n"
        f"    if step == {step}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "train_from_config(json.load(sys.stdin), resume=True, on_step=on_step)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        input=config.model_dump_json(exclude_unset=True),
        cwd=ROOT,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == -9, ended.stderr


def recorded(config: SpeedtronicConfig) -> Losses:
    """What the metrics file says, which the tests of exact resume hold against whole runs."""
    events = read_events(Path(config.run.output_dir) / "metrics.jsonl", "train_step")
    return [(event["step"], pytest.approx(event["loss"], rel=1e-6)) for event in events]


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_run_that_was_cut_up_is_logged_like_a_whole_one(
    name: str, without_hooks: SpeedtronicConfig, tmp_path: Path
) -> None:
    config = tiny_config(tmp_path, **{"logging.hooks": [name]})
    train_and_be_killed(config, 1)  # nothing is saved yet
    train_and_be_killed(config, 5)  # after the checkpoint of step 4
    train_from_config(config, resume=True, max_steps=7)  # beyond the one of step 6
    train_from_config(config, resume=True)
    assert newest(config).step == 8
    assert newest(config).state_digest == newest(without_hooks).state_digest
    assert [step for step, _ in recorded(config)] == list(range(1, 9))
    assert BUILT_IN[name](tmp_path) == recorded(config) == recorded(without_hooks)


@pytest.mark.parametrize("name", BUILT_IN)
def test_validation_losses_are_logged(name: str, tmp_path: Path) -> None:
    validation = {"validation.every_steps": 4, "validation.text_path": "{stdlib}/this.py"}
    config = tiny_config(tmp_path, **{"logging.hooks": [name]}, **validation)
    train_from_config(config)
    if name == "wandb":
        steps = [row["_step"] for row in wandb_rows(tmp_path) if "val_loss" in row]
    else:
        steps = [step for step, _ in tensorboard_scalars(tmp_path)["val_loss"]]
    assert steps == [4, 8]


OWN = """
import random

def build(config, output_dir):
    return Own()

class Own:
    heard = []

    def on_event(self, event, payload):
        random.random()
        self.heard.append((event, payload["step"]))
        if event == "checkpoint_saved":
            raise RuntimeError("no space")
"""


def test_a_hook_that_fails_does_not_stop_or_alter_training(
    without_hooks: SpeedtronicConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "failing_hook.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = {"logging.hooks": ["failing_hook:build"], "checkpoint.async_save": False}
    config = tiny_config(tmp_path / "run", **hooks)
    train_from_config(config)
    assert newest(config).state_digest == newest(without_hooks).state_digest
    heard: list[Any] = sys.modules["failing_hook"].Own.heard
    assert heard == [
        ("run_started", 0),
        ("train_step", 1),
        ("train_step", 2),
        ("checkpoint_saved", 2),
    ]
    assert [message for message in caplog.messages if "failing_hook:build" in message] == [
        "hook failing_hook:build failed on checkpoint_saved and is left out from here on; "
        "training goes on: RuntimeError: no space"
    ]


def test_an_unknown_hook_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "run", **{"logging.hooks": ["mlflow"]})
    with pytest.raises(ConfigError, match=r"logging\.hooks names 'mlflow'"):
        train_from_config(config)
    assert not (tmp_path / "run").exists()
