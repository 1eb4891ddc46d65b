from pathlib import Path
from typing import Any

import pytest

from speedtronic.config.drift import Change, check_drift, refuse_unallowable
from speedtronic.errors import ConfigError, DriftError
from speedtronic.runtime.environment import environment_changes
from tests.recipes import exact_recipe

SAME = ("xxh3_128:a", "xxh3_128:a")

TRAJECTORY: dict[str, Any] = {
    "run.seed": 7,
    "data.seed": 7,
    "data.num_tokens": 3000,
    "data.block_size": 16,
    "data.target_batch_size": 16,
    "data.shuffle": False,
    "data.drop_last": True,
    "optimizer.name": "muon",
    "optimizer.lr": 1e-4,
    "optimizer.betas": [0.8, 0.9],
    "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.5,
    "optimizer.grad_clip": None,
    "scheduler.name": "constant",
    "scheduler.warmup_steps": 6,
    "scheduler.min_lr_ratio": 0.5,
    "precision.mode": "bf16",
    "model.dropout": 0.2,
    "model.rope_base": 5000.0,
    "model.tie_weights": False,
    "model.n_head": 2,
}
FIXED = ["optimizer.name", "model.tie_weights"]
NEUTRAL: dict[str, Any] = {
    "run.name": "other",
    "run.max_steps": 96,
    "run.output_dir": "/elsewhere",
    "run.device": "auto",
    "data.text_path": "/moved/*.py",
    "data.num_workers": 2,
    "data.micro_batch_size": 2,
    "optimizer.fused": True,
    "checkpoint.every_steps": 12,
    "checkpoint.keep_last": None,
    "checkpoint.save_on_stop": True,
    "chunk.retries": 9,
    "logging.every_steps": 5,
    "compile": True,
    "gradient_checkpointing": True,
    # Shapes are judged parameter by parameter.
    "model.d_model": 64,
    "model.n_layer": 3,
}


@pytest.mark.parametrize(
    ("stored", "now", "same"),
    [
        ("1e-4", 1e-4, True),  # as it was stored when YAML's own rules held
        ("1e-4", 2e-4, False),
        ("text", 1, False),
        ("1:30", 90, False),
        ({"a": ["1E5", {"b": "1e3"}]}, {"a": [1e5, {"b": 1000}]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 2], False),
        (1, "1", False),
    ],
)
def test_a_number_stored_as_text_is_no_change(
    tmp_path: Path, stored: Any, now: Any, same: bool
) -> None:
    own = {"data.text_path": None, "data.num_tokens": None, "data.dataset": "m:f"}
    config = exact_recipe(tmp_path, **own, **{"data.dataset_args.x": now, "model.name": "m:f"})
    config = config.override({"model.x": now})
    before = config.to_dict()
    before["data"]["dataset_args"]["x"] = before["model"]["x"] = stored
    allowed = [] if same else ["data.dataset_args", "model.x"]
    changes = check_drift(before, config, fingerprints=SAME, allowed=allowed)
    assert [change.key for change in changes] == allowed


@pytest.mark.parametrize("key", TRAJECTORY)
def test_a_trajectory_key_changed_alone_is_refused_unless_allowed(key: str, tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    stored, changed = config.to_dict(), config.override({key: TRAJECTORY[key]})
    with pytest.raises(DriftError) as caught:
        check_drift(stored, changed, fingerprints=SAME, allowed=())
    message = str(caught.value)
    assert f"  {key}: the run has " in message
    if key in FIXED:
        assert f"--init-from: {key} cannot change in a run" in message
        return
    assert f"--allow-change {key}" in message
    also = {"data.seed"} if key == "run.seed" else set()  # which follows it
    changes = check_drift(stored, changed, fingerprints=SAME, allowed={key, *also})
    assert {change.key for change in changes} == {key, *also}


@pytest.mark.parametrize("key", NEUTRAL)
def test_a_neutral_key_may_change(key: str, tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    changed = config.override({key: NEUTRAL[key]})
    assert check_drift(config.to_dict(), changed, fingerprints=SAME, allowed=()) == []


def test_every_difference_is_named(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    changed = config.override({"optimizer.lr": 1e-4, "run.seed": 7, "model.dropout": 0.0})
    with pytest.raises(DriftError) as caught:
        check_drift(config.to_dict(), changed, fingerprints=SAME, allowed={"optimizer.lr"})
    message = str(caught.value)
    assert "optimizer.lr" not in message
    assert "  model.dropout: the run has 0.1, configured is 0.0\n" in message
    assert "  run.seed: the run has 1234, configured is 7\n" in message


def test_data_that_changed_are_refused_unless_allowed(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    other = ("xxh3_128:a", "xxh3_128:b")
    with pytest.raises(DriftError, match=r"data\.fingerprint"):
        check_drift(config.to_dict(), config, fingerprints=other, allowed=())
    allowed = check_drift(
        config.to_dict(), config, fingerprints=other, allowed={"data.fingerprint"}
    )
    assert allowed == [Change("data.fingerprint", "xxh3_128:a", "xxh3_128:b")]
    assert check_drift(config.to_dict(), config, fingerprints=(None, "x"), allowed=()) == []


@pytest.mark.parametrize("key", ["optimizer.learning_rate", "run.name", "nonsense"])
def test_allowing_an_unknown_key_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--allow-change {key}: not a key that needs it"):
        refuse_unallowable([key], exact_recipe(tmp_path))


@pytest.mark.parametrize("key", FIXED)
def test_allowing_what_cannot_change_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--allow-change {key}: cannot change in a run"):
        refuse_unallowable([key], exact_recipe(tmp_path))


def test_every_other_key_can_be_allowed(tmp_path: Path) -> None:
    refuse_unallowable(
        [*(TRAJECTORY.keys() - set(FIXED)), "data.fingerprint"], exact_recipe(tmp_path)
    )


def test_keys_of_a_model_of_ones_own_count(tmp_path: Path) -> None:
    given = exact_recipe(tmp_path).to_dict()
    given["model"] = {"name": "a.b:c", "width": 3}
    config = type(exact_recipe(tmp_path)).from_dict(given)
    stored = config.to_dict()
    given["model"] = {"name": "a.b:c", "width": 4, "depth": 1}
    changed = type(config).from_dict(given)
    with pytest.raises(DriftError) as caught:
        check_drift(stored, changed, fingerprints=SAME, allowed={"model.width"})
    assert "model.depth: the run has 'nothing', configured is 1" in str(caught.value)


def test_a_key_that_the_checkpoint_does_not_know_is_no_difference(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    stored = config.to_dict()
    del stored["data"]["tokenizer"], stored["precision"]
    assert check_drift(stored, config, fingerprints=SAME, allowed=()) == []


def test_differences_of_the_environment() -> None:
    stored = {"torch": "2.13.0", "threads": 2, "gone": 1}
    assert environment_changes(stored, {"torch": "2.14.0", "threads": 2, "new": 1}) == [
        "torch was 2.13.0, is 2.14.0"
    ]
