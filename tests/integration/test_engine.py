"""Every part of the engine resumes exactly: a run in chunks ends as the uninterrupted one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.errors import NonFiniteError, UsageError
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.runtime import components as parts
from speedtronic.training.metrics import read_events
from tests.recipes import REAL_TEXT, assert_same_tensors, exact_recipe, load, newest

STEPS = 24
BAG = {"name": "tests.models:bag_of_bytes", "width": 8}
VALIDATION = {"validation.every_steps": 6, "validation.text_path": REAL_TEXT[:1]}

SCENARIOS: dict[str, dict[str, Any]] = {
    "reference model": {},
    "own model, batch norm, frozen parameters, modes": {"model": BAG},
    "own model that gives logits": {"model": {"name": "tests.models:logits_only"}},
    "untied weights": {"model.tie_weights": False},
    "muon": {"optimizer.name": "muon"},
    "fused adamw": {"optimizer.fused": True},
    "bf16": {"precision.mode": "bf16"},
    "fp16 with a scaler": {"precision.mode": "fp16"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "validation": VALIDATION,
    "constant schedule": {"scheduler.name": "constant"},
}


def recipe(output_dir: Path, changes: dict[str, Any], **more: Any) -> SpeedtronicConfig:
    config = exact_recipe(output_dir, **{"run.max_steps": STEPS})
    given = config.to_dict()
    if "model" in changes:
        given["model"] = changes["model"]
    rest = {key: value for key, value in changes.items() if key != "model"}
    return SpeedtronicConfig.from_dict(given).override({**rest, **more})


@pytest.mark.parametrize("name", SCENARIOS)
def test_twelve_resumes_in_a_row(name: str, tmp_path: Path) -> None:
    whole = recipe(tmp_path / "whole", SCENARIOS[name])
    result = train_from_config(whole)
    assert result.steps == STEPS
    cut = recipe(tmp_path / "cut", SCENARIOS[name], **{"checkpoint.every_steps": 2})
    for target in range(2, STEPS + 1, 2):
        train_from_config(cut, resume=True, max_steps=target)
    assert newest(cut).state_digest == newest(whole).state_digest
    assert_same_tensors(load(cut), load(whole))


def test_scenarios_differ_from_each_other(tmp_path: Path) -> None:
    """A key that is read by nobody would pass the test above."""
    same_numbers = {"gradient checkpointing", "validation"}
    digests = {}
    for name, changes in SCENARIOS.items():
        config = recipe(tmp_path / name, changes)
        train_from_config(config, max_steps=8)
        digests[name] = newest(config).state_digest
    for name in same_numbers:
        assert digests[name] == digests["reference model"], name
    assert len(set(digests.values())) == len(SCENARIOS) - len(same_numbers)


def test_gradient_checkpointing_reaches_the_model(tmp_path: Path) -> None:
    with build_runtime(recipe(tmp_path, {"gradient_checkpointing": True})) as runtime:
        assert runtime.state.model.gradient_checkpointing
    with pytest.raises(UsageError, match="BagOfBytes has no method set_gradient_checkpointing"):
        build_runtime(recipe(tmp_path / "own", {"model": BAG, "gradient_checkpointing": True}))


@pytest.mark.parametrize("old", [False, True])
def test_gradient_checkpointing_knows_hugging_face_s_method(old: bool) -> None:
    class Theirs(torch.nn.Module):
        given: object = None

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: object) -> None:
            self.given = gradient_checkpointing_kwargs

    class Older(torch.nn.Module):
        given: object = None

        def gradient_checkpointing_enable(self) -> None:
            self.given = True

    model = Older() if old else Theirs()
    parts._checkpoint_gradients(model)
    assert model.given == (True if old else {"use_reentrant": False})


def test_a_model_of_theirs_that_cannot_is_refused_in_our_words() -> None:
    class Unable(torch.nn.Module):
        def gradient_checkpointing_enable(self) -> None:
            raise ValueError("Unable does not support gradient checkpointing.")

    with pytest.raises(UsageError, match=r"^gradient_checkpointing is true: Unable does not"):
        parts._checkpoint_gradients(Unable())


# --- the scaler of fp16 ---


def infinities(runtime: Any, at_attempts: set[int]) -> None:
    """Make the gradient infinite at these attempts, counted from 1."""
    weight = next(runtime.state.model.parameters())
    attempts = 0

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal attempts
        attempts += 1
        return torch.full_like(gradient, float("inf")) if attempts in at_attempts else gradient

    weight.register_hook(hook)


def test_a_skipped_update_is_no_step_but_takes_its_samples(tmp_path: Path) -> None:
    changes = {
        "precision.mode": "fp16",
        "data.micro_batch_size": 8,
        "checkpoint.every_steps": 1,
        "checkpoint.keep_last": None,
    }
    config = recipe(tmp_path, changes)
    with build_runtime(config) as runtime:
        runtime.state.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=7)
        infinities(runtime, {3, 4})
        result = runtime.train(4)
        assert runtime.state.schedule.last_epoch == 4
        scaler = runtime.state.scaler.state_dict()
    assert (result.steps, result.skipped_updates) == (4, 2)
    assert result.samples == (4 + 2) * config.data.target_batch_size
    assert scaler["scale"] == 64.0
    assert scaler["_growth_tracker"] == 2
    events = read_events(tmp_path / "metrics.jsonl", "train_step")
    assert [event["step"] for event in events] == [1, 2, 3, 4]
    assert [event["samples"] for event in events] == [8, 16, 40, 48]

    with build_runtime(config, resume=True) as runtime:
        assert runtime.state.scaler is not None
        restored = runtime.state.scaler.state_dict()
        assert (restored["scale"], restored["_growth_tracker"]) == (64.0, 2)
        assert runtime.state.samples == 48
        result = runtime.train(5)
    assert (result.samples, result.skipped_updates) == (56, 2)


def test_a_hundred_skipped_updates_in_a_row_are_an_error(tmp_path: Path) -> None:
    with build_runtime(recipe(tmp_path, {"precision.mode": "fp16"})) as runtime:
        infinities(runtime, set(range(1, 1000)))
        with pytest.raises(NonFiniteError, match="100 updates in a row were skipped after step 0"):
            runtime.train(4)
    assert not list((tmp_path / "checkpoints").glob("step_*"))


# --- compile ---


def test_compile_on_off_on_resumes_and_says_that_it_is_not_exact(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = recipe(tmp_path, {"compile": True})
    train_from_config(config, max_steps=4)
    names = set(load(config)["model"])
    assert not any("_orig_mod" in name for name in names)
    assert newest(config).environment["compile"] is True
    caplog.clear()
    train_from_config(config.override({"compile": False}), resume=True, max_steps=8)
    assert "environment: compile was True, is False" in caplog.text
    caplog.clear()
    result = train_from_config(config, resume=True, max_steps=12)
    assert "environment: compile was False, is True" in caplog.text
    assert "may differ in some bits" in caplog.text
    assert result.steps == 12
    assert set(load(config)["model"]) == names
    plain = recipe(tmp_path / "plain", {})
    train_from_config(plain, max_steps=12)
    assert load(plain)["loss"] == pytest.approx(load(config)["loss"], abs=0.1), (
        "dropout draws otherwise"
    )


# --- validation ---


def test_validation_leaves_no_trace_and_is_recorded(tmp_path: Path) -> None:
    config = recipe(tmp_path, VALIDATION)
    result = train_from_config(config)
    events = read_events(tmp_path / "metrics.jsonl", "validation")
    assert [event["step"] for event in events] == [6, 12, 18, 24]
    losses = {event["step"]: event["val_loss"] for event in events}
    assert losses[24] < losses[6]
    assert result.metrics["val_loss"] == losses[24]
    assert newest(config).val_loss == losses[24]
    manifest = json.loads((tmp_path / "checkpoints/step_000000000020.json").read_text())
    assert manifest["val_loss"] is None, "no validation took place at step 20"


def test_validation_lines_have_no_duplicates_after_a_resume(tmp_path: Path) -> None:
    whole, cut = recipe(tmp_path / "whole", VALIDATION), recipe(tmp_path / "cut", VALIDATION)
    train_from_config(whole)
    for target in (7, 13, 24):  # past the last checkpoint each time
        train_from_config(cut, resume=True, max_steps=target)
    of = [read_events(tmp_path / name / "metrics.jsonl", "validation") for name in ("whole", "cut")]
    assert of[0] == of[1]


def test_max_batches_bounds_the_work(tmp_path: Path) -> None:
    few = recipe(tmp_path / "few", VALIDATION, **{"validation.max_batches": 1})
    every = recipe(tmp_path / "every", VALIDATION)
    assert (
        train_from_config(few).metrics["val_loss"] != train_from_config(every).metrics["val_loss"]
    )


def test_keep_best_keeps_the_lowest_losses_besides_the_last(tmp_path: Path) -> None:
    changes = {
        **VALIDATION,
        "validation.every_steps": 2,
        "checkpoint.every_steps": 2,
        "checkpoint.keep_last": 2,
        "checkpoint.keep_best": 3,
        "optimizer.lr": 0.05,  # so that the loss goes up and down
    }
    config = recipe(tmp_path, changes)
    train_from_config(config)
    events = read_events(tmp_path / "metrics.jsonl", "validation")
    losses = {event["step"]: event["val_loss"] for event in events}
    best = sorted(losses, key=lambda step: losses[step])[:3]
    assert set(best) != {20, 22, 24}, "the recipe must not end at its best"
    kept = {int(p.stem[5:]) for p in (tmp_path / "checkpoints").glob("step_*.pt")}
    assert kept == {22, 24, *best}


# --- models of one's own that cannot be used ---


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "tests.models:nothing"}, "tests.models"),
        ({"name": "tests.nowhere:model"}, "does not import"),
        ({"name": "tests.models:bag_of_bytes", "hight": 3}, "hight"),
        ({"name": "tests.models:REAL"}, "REAL"),
    ],
)
def test_a_model_that_cannot_be_built_writes_nothing(
    model: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        train_from_config(recipe(tmp_path / "run", {"model": model}))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_loss_is_told_so(tmp_path: Path) -> None:
    config = recipe(tmp_path, {"model": {"name": "tests.models:no_loss"}})
    with pytest.raises(
        UsageError, match=r"returned a tensor of shape \[4, 32\]; expected a scalar"
    ):
        train_from_config(config)
