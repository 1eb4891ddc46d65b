"""What may change between the parts of a run, and how it is told."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from speedtronic.cli import main
from speedtronic.errors import (
    CheckpointError,
    DriftError,
    NoValidCheckpointError,
    RestoreError,
    RunExistsError,
    UsageError,
)
from speedtronic.runtime import build_runtime, train_from_config
from tests.recipes import assert_same_tensors, exact_recipe, load, newest
from tests.unit.config.test_drift import FIXED, TRAJECTORY


def test_a_changed_learning_rate_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=8)
    before = {p: p.read_bytes() for p in (tmp_path / "checkpoints").glob("*.*")}
    with pytest.raises(
        DriftError, match=r"optimizer\.lr: the run has 0\.003, configured is 0\.001"
    ):
        train_from_config(config.override({"optimizer.lr": 1e-3}), resume=True)
    assert all(
        path.read_bytes() == content for path, content in before.items() if path.name[0] != "."
    )


def test_an_allowed_change_is_applied_and_recorded(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"scheduler.name": "constant"})
    train_from_config(config, max_steps=8)
    changed = config.override({"optimizer.lr": 1e-3, "optimizer.betas": [0.8, 0.9]})
    allowed = ["optimizer.lr", "optimizer.betas"]
    with build_runtime(changed, resume=True, allow_changes=allowed) as runtime:
        groups = runtime.state.optimizer.param_groups
        assert {group["lr"] for group in groups} == {1e-3}
        assert {tuple(group["betas"]) for group in groups} == {(0.8, 0.9)}
        assert len(runtime.notes) == 2
        runtime.train(12)
    history = newest(config).history
    assert [(h["step"], h["changed"], h["stored"], h["current"]) for h in history] == [
        (8, "optimizer.lr", 3e-3, 1e-3),
        (8, "optimizer.betas", [0.9, 0.95], [0.8, 0.9]),
    ]
    # It is the run's own now: no need to allow it again, and the history stays.
    train_from_config(changed, resume=True, max_steps=16)
    assert newest(config).history == history


@pytest.mark.parametrize("key", sorted(TRAJECTORY.keys() - set(FIXED) - {"model.n_head"}))
def test_each_key_that_is_allowed_goes_on_and_is_recorded(key: str, tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=4)
    changed = config.override({key: TRAJECTORY[key]})
    with pytest.raises(DriftError, match=re.escape(key)):
        train_from_config(changed, resume=True, max_steps=8)
    allowed = [key, "data.seed"] if key == "run.seed" else [key]
    result = train_from_config(changed, resume=True, max_steps=8, allow_changes=allowed)
    assert result.steps == 8
    assert [entry["changed"] for entry in newest(config).history] == allowed
    same = exact_recipe(tmp_path / "same")
    train_from_config(same, max_steps=8)
    assert newest(config).state_digest != newest(same).state_digest, "it was not applied"


def test_moving_the_horizon_is_recorded(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=8)
    train_from_config(config, resume=True, max_steps=12, schedule_max_steps=96)
    assert newest(config).history[0]["changed"] == "scheduler.max_steps"
    assert load(config)["scheduler"]["max_steps"] == 96


def test_shapes_are_refused_by_parameter(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=4)
    with pytest.raises(RestoreError) as caught:
        train_from_config(config.override({"model.d_model": 64}), resume=True)
    assert "embedding.weight: stored [256, 32], the model has [256, 64]" in str(caught.value)
    with pytest.raises(RestoreError, match=r"blocks\.2\.\S+: missing, the model has"):
        train_from_config(config.override({"model.n_layer": 3}), resume=True)


@pytest.mark.parametrize(
    ("change", "refused"),
    [("none", False), ("moved", False), ("byte", True), ("shrunk", True), ("renamed", True)],
)
def test_a_corpus_that_changed_is_noticed(change: str, refused: bool, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("a.txt", "b.txt"):
        (corpus / name).write_text(f"the text of {name}, which is long enough. " * 60)
    changes = {"data.text_path": f"{corpus}/*.txt", "data.num_tokens": None}
    config = exact_recipe(tmp_path / "run", **changes)
    train_from_config(config, max_steps=4)
    if change == "moved":
        corpus = corpus.rename(tmp_path / "elsewhere")
        config = config.override({"data.text_path": f"{corpus}/*.txt"})
    elif change == "byte":
        text = (corpus / "b.txt").read_text()
        (corpus / "b.txt").write_text(text[:700] + "X" + text[701:])
    elif change == "shrunk":
        (corpus / "b.txt").write_text((corpus / "b.txt").read_text()[:-500])
    elif change == "renamed":
        (corpus / "b.txt").rename(corpus / "c.txt")
    if not refused:
        assert train_from_config(config, resume=True, max_steps=8).steps == 8
        return
    with pytest.raises(DriftError, match=r"data\.fingerprint"):
        train_from_config(config, resume=True, max_steps=8)
    allowed = ["data.fingerprint"]
    assert train_from_config(config, resume=True, max_steps=8, allow_changes=allowed).steps == 8
    assert newest(config).history[0]["changed"] == "data.fingerprint"


def test_an_environment_that_changed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=4)
    recorded = newest(config).environment
    assert recorded["torch"] == str(torch.__version__)
    assert {"python", "threads", "cpu", "device", "precision", "deterministic"} <= set(recorded)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    train_from_config(config, resume=True, max_steps=8)
    assert f"environment: threads was {recorded['threads']}, is 64" in caplog.text
    assert newest(config).environment["threads"] == 64


# --- other beginnings ---


@pytest.mark.parametrize("kind", [".pt", ".safetensors"])
def test_init_from_takes_the_weights_only(kind: str, tmp_path: Path) -> None:
    parent = exact_recipe(tmp_path / "parent")
    train_from_config(parent, max_steps=8)
    weights = load(parent)["model"]
    file = tmp_path / "parent/checkpoints/step_000000000008.pt"
    if kind == ".safetensors":
        file = tmp_path / "weights.safetensors"
        save_file({name: tensor.clone() for name, tensor in weights.items()}, file)
    config = exact_recipe(tmp_path / "child", **{"optimizer.lr": 1e-4, "run.seed": 9})
    with build_runtime(config, init_from=str(file)) as runtime:
        state = runtime.state
        assert state.step == state.samples == 0
        assert_same_tensors(state.model.state_dict(), weights)
        assert not state.optimizer.state
        runtime.train(4)
    assert newest(config).history[0]["init_from"] == file.name
    assert newest(config).run_id != newest(parent).run_id


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (None, UsageError, "No such file"),
        (b"", CheckpointError, "holds no weights"),
        (b"no weights at all", CheckpointError, "holds no weights"),
    ],
)
@pytest.mark.parametrize("kind", [".pt", ".safetensors"])
def test_init_from_a_file_that_is_none(
    kind: str, content: bytes | None, error: type[Exception], said: str, tmp_path: Path
) -> None:
    file = tmp_path / f"weights{kind}"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(error, match="--init-from") as caught:
        train_from_config(exact_recipe(tmp_path / "run"), init_from=str(file))
    assert said in str(caught.value) or "No such file" in str(caught.value)


def test_init_from_weights_of_another_model_names_them(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"embedding.weight": torch.zeros(3, 4), "other": torch.zeros(2)}, file)
    with pytest.raises(RestoreError) as caught:
        train_from_config(exact_recipe(tmp_path / "run"), init_from=str(file))
    message = str(caught.value)
    assert "embedding.weight: stored [3, 4], the model has [256, 32]" in message
    assert "missing, the model has" in message


def test_a_fork_goes_on_exactly_under_a_run_id_of_its_own(tmp_path: Path) -> None:
    parent = exact_recipe(tmp_path / "parent", **{"checkpoint.keep_last": None})
    train_from_config(parent)
    given = tmp_path / "fork.yaml"
    fork = exact_recipe(tmp_path / "fork")
    given.write_text(fork.to_yaml())
    arguments = ["--fork-from", str(tmp_path / "parent"), "--at-step", "8"]
    assert main(["train", "--config", str(given), *arguments]) == 0
    assert newest(fork).state_digest == newest(parent).state_digest
    assert newest(fork).run_id != newest(parent).run_id
    (entry,) = newest(fork).history
    assert (entry["step"], entry["forked_from"]) == (8, newest(parent).run_id)
    assert main(["train", "--config", str(given), *arguments]) == 2, "it is there already"


def test_a_fork_stands_on_its_own_at_once(tmp_path: Path) -> None:
    parent, fork = exact_recipe(tmp_path / "parent"), exact_recipe(tmp_path / "fork")
    train_from_config(parent, max_steps=12)
    train_from_config(fork, fork_from=(parent.checkpoint_dir, 8), max_steps=8)
    assert (newest(fork).step, newest(fork).run_id != newest(parent).run_id) == (8, True)
    train_from_config(fork, resume=True, max_steps=12)
    assert newest(fork).state_digest == newest(parent).state_digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"init_from": "a.pt", "fork_from": ("b", 1)}, "--init-from and --fork-from"),
        ({"trust_legacy": True}, "--trust-legacy is for going on"),
        ({"allow_changes": ["optimizer.lrr"]}, "--allow-change optimizer.lrr: not a key"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        train_from_config(exact_recipe(tmp_path / "run"), **options)
    assert not (tmp_path / "run").exists()


def test_a_fork_with_a_change_needs_it_allowed(tmp_path: Path) -> None:
    parent = exact_recipe(tmp_path / "parent", **{"checkpoint.keep_last": None})
    train_from_config(parent, max_steps=12)
    fork = exact_recipe(tmp_path / "fork", **{"optimizer.lr": 1e-4})
    start = (parent.checkpoint_dir, 8)
    with pytest.raises(DriftError, match=r"optimizer\.lr"):
        train_from_config(fork, fork_from=start, max_steps=12)
    train_from_config(fork, fork_from=start, max_steps=12, allow_changes=["optimizer.lr"])
    assert [set(entry) >= {"forked_from"} for entry in newest(fork).history] == [False, True]


def test_a_fork_from_a_step_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    parent = exact_recipe(tmp_path / "parent")
    train_from_config(parent, max_steps=12)
    start = (parent.checkpoint_dir, 5)
    with pytest.raises(
        NoValidCheckpointError, match="no checkpoint of step 5; committed there: 4, 8, 12"
    ):
        train_from_config(exact_recipe(tmp_path / "fork"), fork_from=start)
    with pytest.raises(RunExistsError):
        train_from_config(parent, fork_from=(parent.checkpoint_dir, 8))
