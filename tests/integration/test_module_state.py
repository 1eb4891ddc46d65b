"""Whatever a model keeps, and wherever: a run in parts ends as the uninterrupted one, or it is
refused by name before the first step."""

import logging
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.checkpoint.candidates import candidates
from speedtronic.checkpoint.export import export_weights
from speedtronic.errors import UsageError
from speedtronic.recovery.compare import difference
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.training.metrics import read_events
from speedtronic.training.value_comparison import same_bits
from tests.odd_models import odd_buffers, refused_buffers
from tests.recipes import load, newest
from tests.tiny import names


def config_of(folder: Path, model: str, more: dict[str, Any], **args: Any) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": str(folder), "max_steps": 20, "device": "cpu"},
            "model": {"name": f"tests.odd_models:{model}", **args},
            "data": {
                "dataset": "tests.own_parts:augmented",
                "micro_batch_size": 2,
                "target_batch_size": 2,
            },
            "optimizer": {"lr": 0.01, "grad_clip": 1.0},
            "scheduler": {"warmup_steps": 2},
            "checkpoint": {"every_steps": 3},
            "logging": {"every_steps": 1},
        }
    ).override(more)


def ends_the_same(folder: Path, model: str, more: dict[str, Any] | None = None, **args: Any) -> Any:
    """Train at once, and stopped at 3, 6 and 12; returns the state of the end."""
    whole = config_of(folder / "whole", model, more or {}, **args)
    train_from_config(whole, max_steps=18)
    parts = config_of(folder / "parts", model, more or {}, **args)
    for target in (3, 6, 12, 18):
        train_from_config(parts, resume=True, max_steps=target)
    assert newest(parts).state_digest == newest(whole).state_digest
    ended = load(whole)
    assert difference(load(parts), ended) is None
    return ended


OUTSIDE = {
    "Counter": "attributes",
    "NonPersistent": "buffers",
    "NonPersistentLater": "buffers",
    "TensorAttribute": "attributes",
    "Shared": "attributes",
    "Containers": "attributes",
    "Generators": "generators",
    "Freezes": "attributes",
}


@pytest.mark.parametrize("model", OUTSIDE)
def test_what_is_in_no_state_dict_comes_back(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ended = ends_the_same(tmp_path, model)
    assert OUTSIDE[model] in ended["module_state"]
    assert not caplog.records


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(
    "model", ["Expanded", "Grows", "Appears", "ComesApart", "Extra", "ExtraTensor"]
)
def test_buffers_that_change_kind_and_extra_state_come_back(
    model: str, background: bool, tmp_path: Path
) -> None:
    ends_the_same(tmp_path, model, {"checkpoint.async_save": background})


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("moving", [True, False])
def test_every_kind_of_buffer_comes_back(moving: bool, persistent: bool, tmp_path: Path) -> None:
    ended = ends_the_same(tmp_path, "Odd", persistent=persistent, moving=moving)
    if persistent:
        assert set(odd_buffers()) < set(ended["model"])
    else:
        kept = ended["module_state"].get("buffers", {})
        assert "negative" not in kept or moving


@pytest.mark.parametrize("kind", refused_buffers())
def test_a_buffer_that_no_checkpoint_can_hold_is_refused_before_the_first_step(
    kind: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"inner\.odd") as caught:
        build_runtime(config_of(tmp_path / "run", "Refused", {}, kind=kind))
    assert len(str(caught.value).splitlines()) == 1
    assert names(tmp_path) == []
    if kind != "meta":
        free = config_of(tmp_path / "run", "Refused", {"checkpoint.enabled": False}, kind=kind)
        assert train_from_config(free, max_steps=2).steps == 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("ExtraWithoutSet", r"the model \(ExtraWithoutSet\) has get_extra_state and no set_extra"),
        ("ExtraObject", r"get_extra_state\(\) of the model\['noise'\] is a tests.*Noise, expected"),
    ],
)
def test_extra_state_that_cannot_come_back_is_refused(
    model: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        build_runtime(config_of(tmp_path / "run", model, {}))
    assert names(tmp_path) == []


@pytest.mark.parametrize("model", ["Odd", "Extra", "ExtraTensor", "Counter"])
def test_weights_of_any_model_can_be_exported_and_begun_with(
    model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = {"persistent": True, "moving": False} if model == "Odd" else {}
    config = config_of(tmp_path / "run", model, {}, **args)
    train_from_config(config, max_steps=3)
    trained = load(config)["model"]
    checkpoint = CheckpointStore(open_storage(config.checkpoint_dir), keep_last=None).select()
    assert checkpoint is not None
    file = str(tmp_path / "weights.safetensors")
    export_weights(checkpoint, file)
    assert ("left out: csr (float32, sparse_csr)" in caplog.text) == (model == "Odd")
    ours = f"{config.checkpoint_dir}/step_000000000003.pt"
    for source in [file] if model == "Odd" else [file, ours]:  # a foreign file is read with care
        fresh = config_of(tmp_path / source[-4:], model, {}, **args)
        with build_runtime(fresh, init_from=source) as runtime:
            begun = runtime.state.state_dict()["model"]
        for name in ("hidden.weight", "head.bias", *(["float8_e4m3"] if args else [])):
            assert same_bits(begun[name], trained[name])


# --- the model as its maker left it ---


def modes_of(folder: Path, model: str, **args: Any) -> dict[str, bool]:
    with build_runtime(config_of(folder, model, {}, **args)) as runtime:
        runtime.train(3)
        return dict(runtime.state.state_dict()["modes"])


def test_modes_that_the_factory_set_stay(tmp_path: Path) -> None:
    config = config_of(tmp_path, "FrozenNorm", {})
    for target in (3, 6):
        train_from_config(config, resume=True, max_steps=target)
    state = load(config)
    assert [name for name, training in state["modes"].items() if not training] == ["norm"]
    assert not state["model"]["norm.running_mean"].any()
    assert state["model"]["norm.num_batches_tracked"] == 0


def test_a_model_that_its_library_left_in_eval_mode_is_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert all(modes_of(tmp_path / "a", "in_eval_mode").values())
    assert "the factory returned Counter in eval mode: it is put into train mode" in caplog.text
    caplog.clear()
    assert all(modes_of(tmp_path / "b", "Adapted", frozen=False).values())
    assert "Pretrained in eval mode" in caplog.text
    caplog.clear()
    frozen = modes_of(tmp_path / "c", "Adapted", frozen=True)
    assert (frozen[""], frozen["base"], frozen["base.embedding"]) == (True, False, False)
    assert "eval mode" not in caplog.text


def test_a_lazy_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the shape of head\.weight \(LazyLinear\) is not known"):
        build_runtime(config_of(tmp_path / "run", "Lazy", {}))
    assert names(tmp_path) == []


# --- a validation that gives no number ---


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_validation_loss_that_is_not_finite_ends_no_healthy_run(
    value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {
        "validation.every_steps": 2,
        "validation.dataset": "tests.own_parts:augmented",
        "checkpoint.every_steps": 2,
        "checkpoint.keep_best": 1,
        "checkpoint.keep_last": 9,
    }
    whole = config_of(tmp_path / "whole", "Overflows", more, value=value)
    train_from_config(whole, max_steps=8)
    assert [line for line in caplog.messages if "validation" in line] == [
        "the validation loss of step 4 is nan; the step counts as not validated, and training "
        "goes on"
    ]
    events = read_events(tmp_path / "whole" / "metrics.jsonl", "validation")
    assert [event["val_loss"] is None for event in events] == [False, True, False, False]
    store = open_storage(whole.checkpoint_dir)
    losses = {c.step: c.manifest.val_loss for c in candidates(store)}
    assert losses[4] is None
    assert None not in (losses[2], losses[6], losses[8])
    parts = config_of(tmp_path / "parts", "Overflows", more, value=value)
    for target in (4, 8):
        result = train_from_config(parts, resume=True, max_steps=target)
        assert ("val_loss" in result.metrics) == (target == 8)
    assert newest(parts).state_digest == newest(whole).state_digest


def test_a_step_without_a_validation_loss_is_never_the_best(tmp_path: Path) -> None:
    more = {
        "validation.every_steps": 2,
        "validation.dataset": "tests.own_parts:augmented",
        "checkpoint.every_steps": 2,
        "checkpoint.keep_best": 1,
        "checkpoint.keep_last": 1,
    }
    config = config_of(tmp_path, "Overflows", more)
    train_from_config(config, max_steps=6)
    losses = {c.step: c.manifest.val_loss for c in candidates(open_storage(config.checkpoint_dir))}
    assert 4 not in losses
    assert 6 in losses
