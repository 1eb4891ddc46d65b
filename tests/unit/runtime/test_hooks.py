"""Hooks driven by events: what they record of runs that were killed, and what they never do."""

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.runtime.hooks import build_hooks
from speedtronic.training.metrics import Hook
from tests.logged import tensorboard_scalars, wandb_rows, wandb_segments
from tests.tiny import tiny_config

ROOT = Path(__file__).parents[3]
BUILT_IN = ["tensorboard", "wandb"]

OWN = """
import random
import numpy, torch

class Recorder:
    def __init__(self, config, output_dir):
        self.made_with = config, output_dir
        self.events = []
    def on_event(self, event, payload):
        random.random(), numpy.random.rand(), torch.rand(1)
        self.events.append((event, payload.pop("step")))
        if payload.get("loss") == 13:
            raise OSError("no space")

def silent(config, output_dir):
    return {}

def fails(config, output_dir):
    raise RuntimeError("no server")

made = []
def record(config, output_dir):
    made.append(Recorder(config, output_dir))
    random.random()
    return made[-1]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The hooks that `own_hooks:record` has made."""
    (tmp_path / "own_hooks.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_hooks

    yield own_hooks.made
    del sys.modules["own_hooks"]


def configured(folder: Path, *names: str) -> SpeedtronicConfig:
    return tiny_config(folder, **{"logging.hooks": list(names)})


def build(folder: Path, *names: str) -> list[Hook]:
    return build_hooks(configured(folder, *names), folder)


def train(hook: Hook, *, start: int, stop: int, end: bool = True, save_every: int = 4) -> None:
    """The events of a run from step `start` to `stop`, killed there unless `end`."""
    config = {"run": {"name": "tiny"}, "secret": "***"}
    hook.on_event(
        "run_started", {"step": start, "run_id": "r" if start else None, "config": config}
    )
    for step in range(start + 1, stop + 1):
        payload = {"step": step, "loss": 1 / step, "lr": 0.1, "samples": 4, "tokens": 64}
        hook.on_event("train_step", {**payload, "tokens_per_s": 2.0 * step})
        if step % 2 == 0:
            hook.on_event("validation", {"step": step, "val_loss": 2 / step})
        if step % save_every == 0:
            hook.on_event("checkpoint_saved", {"step": step, "file": "x.pt"})
    if end:
        hook.on_event("run_ended", {"step": stop})


def train_and_be_killed(folder: Path, name: str, start: int, stop: int) -> None:
    """The same in a process that then kills itself with SIGKILL."""
    code = (
        "import os, pathlib, signal\n"
        "from tests.unit.runtime.test_hooks import build, train\n"
        f"[hook] = build(pathlib.Path({str(folder)!r}), {name!r})\n"
        f"train(hook, start={start}, stop={stop}, end=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, capture_output=True)
    assert ended.returncode == -9, ended.stderr


def train_to(folder: Path, name: str, start: int, stop: int) -> None:
    [hook] = build(folder, name)
    train(hook, start=start, stop=stop)


def wandb_ids(folder: Path) -> list[str]:
    return [segment.name.split("-")[3] for segment in wandb_segments(folder)]


def losses(stop: int) -> list[tuple[int, float]]:
    return [(step, pytest.approx(1 / step)) for step in range(1, stop + 1)]


def validations(stop: int) -> list[tuple[int, float]]:
    return [(step, pytest.approx(2 / step)) for step in range(2, stop + 1, 2)]


# --- TensorBoard ---


def test_tensorboard_shows_each_scalar(tmp_path: Path) -> None:
    train_to(tmp_path, "tensorboard", 0, 6)
    shown = tensorboard_scalars(tmp_path)
    assert shown.keys() == {"loss", "lr", "tokens_per_s", "val_loss"}
    assert shown["loss"] == losses(6)
    assert shown["val_loss"] == validations(6)
    assert shown["tokens_per_s"] == [(step, 2.0 * step) for step in range(1, 7)]


def test_tensorboard_shows_every_step_once_after_kills(tmp_path: Path) -> None:
    train_and_be_killed(tmp_path, "tensorboard", 0, 3)  # before the first checkpoint
    train_and_be_killed(tmp_path, "tensorboard", 0, 6)
    train_to(tmp_path, "tensorboard", 4, 7)
    train_to(tmp_path, "tensorboard", 4, 12)  # the one before stopped beyond its checkpoint
    shown = tensorboard_scalars(tmp_path)
    assert shown["loss"] == losses(12)
    assert shown["val_loss"] == validations(12)


def test_tensorboard_shows_every_step_once_after_a_record_cut_short(tmp_path: Path) -> None:
    train_to(tmp_path, "tensorboard", 0, 6)
    [file] = (tmp_path / "tensorboard").iterdir()
    with file.open("r+b") as events:
        events.truncate(file.stat().st_size - 5)
    train_to(tmp_path, "tensorboard", 4, 8)
    assert tensorboard_scalars(tmp_path)["loss"] == losses(8)


def test_tensorboard_has_what_was_logged_when_a_process_is_killed(tmp_path: Path) -> None:
    train_and_be_killed(tmp_path, "tensorboard", 0, 7)
    assert tensorboard_scalars(tmp_path)["loss"] == losses(7)


# --- Weights & Biases ---


def test_wandb_keeps_rows_with_their_steps(tmp_path: Path) -> None:
    train_to(tmp_path, "wandb", 0, 6)
    rows = wandb_rows(tmp_path)
    assert [row["_step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == [loss for _, loss in losses(6)]
    assert [row["val_loss"] for row in rows if "val_loss" in row] == [1, 0.5, pytest.approx(1 / 3)]


def test_wandb_goes_on_in_the_same_run_without_repeating_steps(tmp_path: Path) -> None:
    train_to(tmp_path, "wandb", 0, 6)
    train_to(tmp_path, "wandb", 4, 9)
    first, second = wandb_ids(tmp_path)
    assert first == second
    assert [row["_step"] for row in wandb_rows(tmp_path)] == list(range(1, 10))


def test_wandb_has_every_step_once_after_kills(tmp_path: Path) -> None:
    train_and_be_killed(tmp_path, "wandb", 0, 3)
    train_and_be_killed(tmp_path, "wandb", 0, 6)
    train_and_be_killed(tmp_path, "wandb", 4, 7)
    train_to(tmp_path, "wandb", 4, 12)
    assert [row["_step"] for row in wandb_rows(tmp_path)] == list(range(1, 13))
    assert [row["loss"] for row in wandb_rows(tmp_path)] == [loss for _, loss in losses(12)]
    assert len(wandb_ids(tmp_path)) == 1


def test_wandb_has_every_step_even_if_nothing_was_left_to_train(tmp_path: Path) -> None:
    train_and_be_killed(tmp_path, "wandb", 0, 4)
    train_to(tmp_path, "wandb", 4, 4)
    assert [row["_step"] for row in wandb_rows(tmp_path)] == [1, 2, 3, 4]
    assert len(wandb_segments(tmp_path)) == 1


@pytest.mark.parametrize("moment", ["opened", "recorded", "finished"])
def test_wandb_has_every_step_once_whenever_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    train_to(tmp_path, "wandb", 0, 5)
    [hook] = build(tmp_path, "wandb")
    real = hook._hook  # type: ignore[attr-defined]
    write, calls = real._write_record, []

    def die(**changes: Any) -> None:
        calls.append(changes)
        if moment == ("opened" if len(calls) == 1 else "finished"):
            raise KeyboardInterrupt
        write(**changes)
        if moment == "recorded":
            raise KeyboardInterrupt

    monkeypatch.setattr(real, "_write_record", die)
    with pytest.raises(KeyboardInterrupt):
        train(hook, start=4, stop=9)
    if moment != "finished":
        real._run.finish()
    train_to(tmp_path, "wandb", 4 if moment != "finished" else 8, 10)
    assert [row["_step"] for row in wandb_rows(tmp_path)] == list(range(1, 11))


def test_wandb_gives_a_run_from_the_start_an_id_of_its_own(tmp_path: Path) -> None:
    train_to(tmp_path, "wandb", 0, 2)
    train_to(tmp_path, "wandb", 0, 3)
    first, second = wandb_ids(tmp_path)
    assert first != second
    assert [row["_step"] for row in wandb_rows(tmp_path)] == [1, 2, 1, 2, 3]


def test_a_process_with_a_wandb_run_left_open_ends_at_once(tmp_path: Path) -> None:
    code = (
        "import pathlib\n"
        "from tests.unit.runtime.test_hooks import build, train\n"
        f"[hook] = build(pathlib.Path({str(tmp_path)!r}), 'wandb')\n"
        "train(hook, start=0, stop=3, end=False)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=30, capture_output=True, check=True
    )
    train_to(tmp_path, "wandb", 0, 4)
    assert [row["_step"] for row in wandb_rows(tmp_path)] == [1, 2, 3, 4]


# --- both ---


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_run_that_trains_nothing_writes_nothing(tmp_path: Path, name: str) -> None:
    train_to(tmp_path, name, 8, 8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, name)
    assert str(caught.value) == (
        f"logging.hooks names '{name}', which is not installed; "
        f"pip install 'speedtronic-flows[{name}]'"
    )


@pytest.mark.parametrize("name", [*BUILT_IN, "own_hooks:record"])
def test_no_random_number_is_drawn(tmp_path: Path, own: list[Any], name: str) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(1))]

    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = draw()
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    train_to(tmp_path / "run", name, 0, 4)
    assert draw() == expected


def test_a_folder_of_the_same_name_is_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match="not installed"):
        build(tmp_path, "wandb")


# --- one's own ---


def test_a_hook_of_ones_own_hears_events(tmp_path: Path, own: list[Any]) -> None:
    [hook] = build(tmp_path / "run", "own_hooks:record")
    train(hook, start=3, stop=4)
    [made] = own
    assert made.made_with == (configured(tmp_path / "run", "own_hooks:record"), tmp_path / "run")
    assert made.events == [
        ("run_started", 3),
        ("train_step", 4),
        ("validation", 4),
        ("checkpoint_saved", 4),
        ("run_ended", 4),
    ]


def test_a_hook_cannot_change_what_others_hear(tmp_path: Path, own: list[Any]) -> None:
    [hook] = build(tmp_path, "own_hooks:record")
    payload = {"step": 1}
    hook.on_event("run_ended", payload)
    assert payload == {"step": 1}


def test_a_hook_that_raises_warns_once_and_is_left_out(
    tmp_path: Path, own: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    [hook] = build(tmp_path, "own_hooks:record")
    with caplog.at_level(logging.WARNING):
        for step in range(1, 4):
            hook.on_event("train_step", {"step": step, "loss": 13 if step == 2 else 1})
    assert caplog.messages == [
        "hook own_hooks:record failed on train_step and is left out from here on; training goes "
        "on: OSError: no space"
    ]
    assert own[0].events == [("train_step", 1), ("train_step", 2)]


def test_a_hook_named_twice_hears_events_once(tmp_path: Path, own: list[Any]) -> None:
    assert len(build(tmp_path, "own_hooks:record", "own_hooks:record")) == len(own) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tensorbord",
            "logging.hooks names 'tensorbord', which is no hook; did you mean 'tensorboard'? "
            "allowed are tensorboard, wandb and package.module:factory",
        ),
        (
            "mlflow",
            "logging.hooks names 'mlflow', which is no hook; "
            "allowed are tensorboard, wandb and package.module:factory",
        ),
        (
            "own_hooks:silent",
            "logging.hooks names 'own_hooks:silent', whose dict has no on_event",
        ),
        (
            "own_hooks:fails",
            "logging.hooks is 'own_hooks:fails'; it raised RuntimeError: no server",
        ),
        (
            "own_hooks:missing",
            "logging.hooks is 'own_hooks:missing': module 'own_hooks' has no attribute 'missing'",
        ),
    ],
)
def test_what_is_no_hook_is_refused(
    tmp_path: Path, own: list[Any], name: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, name)
    said = str(caught.value)
    assert said.partition(" (at ")[0] == message
    assert ("own_hooks.py:" in said) == ("it raised" in said)


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    hook = names["build"](configured(tmp_path), tmp_path)
    for step, loss in enumerate([3.0, 2.0, 2.1, 2.3]):
        hook.on_event("validation", {"step": step, "val_loss": loss})
    assert (tmp_path / "alerts.txt").read_text(encoding="utf-8") == "3 2.3\n"
