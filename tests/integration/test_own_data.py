"""Data of one's own: however a run on them is cut up, it ends in the same state, to the bit."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.errors import DriftError, RestoreError
from speedtronic.runtime import train_from_config
from tests import own_parts
from tests.own_parts import LENGTH, NUM_TOKENS
from tests.recipes import assert_same_tensors, load, newest

NUM_STEPS = 24  # of 4 samples; an epoch has 22, so four of them and a bit


@pytest.fixture(autouse=True, scope="module")
def offline() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        yield


def recipe(output_dir: Path, dataset: str, args: dict[str, Any]) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": str(output_dir), "max_steps": NUM_STEPS, "device": "cpu"},
            "model": {
                "vocab_size": NUM_TOKENS,
                "max_seq_len": LENGTH,
                "n_layer": 1,
                "n_head": 2,
                "d_model": 16,
                "dropout": 0.1,
            },
            "data": {
                "dataset": f"tests.own_parts:{dataset}",
                "dataset_args": args,
                "drop_last": False,
                "micro_batch_size": 2,
                "target_batch_size": 4,
            },
            "optimizer": {"lr": 3e-3},
            "scheduler": {"warmup_steps": 2},
            "checkpoint": {"every_steps": 1, "save_on_stop": True},
            "logging": {"every_steps": 1},
        }
    )


@dataclass(frozen=True)
class Scenario:
    dataset: str
    args: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)


MAP = {"data.shuffle": True}
LOADER = {"batch_size": 2}

SCENARIOS = {
    "map-style": Scenario("augmented", {}, MAP),
    "map-style, 2 workers": Scenario("augmented", {}, {**MAP, "data.num_workers": 2}),
    "map-style, 3 workers": Scenario("augmented", {}, {**MAP, "data.num_workers": 3}),
    "iterable, by skipping": Scenario("stream"),
    "iterable that counts its passes": Scenario("counting_stream"),
    "iterable, by set_epoch": Scenario("epoch_stream"),
    "iterable, by its state": Scenario("stateful_stream"),
    "torchdata, 2 workers": Scenario("stateful_loader", LOADER),
    "torchdata over a stream": Scenario("stateful_loader", {"of": "stream", **LOADER}),
    "torch loader, by skipping": Scenario("torch_loader", LOADER),
    "datasets, map-style": Scenario("hf_map", {}, MAP),
    "datasets, iterable": Scenario("hf_iterable"),
    "datasets, iterable, mapped in batches": Scenario("hf_iterable", {"how": "batched"}),
}

STOPS = {
    "at an epoch's end": [11],  # 44 samples: two epochs of 22
    "within the first batch": [1],
    "in the third epoch": [13],
    "twelve times": [1, 2, 5, 6, 7, 11, 12, 13, 16, 17, 22, 23],
}

Uninterrupted = dict[str, SpeedtronicConfig]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """The run of each scenario in one piece, made when first asked for."""
    folder, made = tmp_path_factory.mktemp("uninterrupted"), {}

    class Runs(dict[str, SpeedtronicConfig]):
        def __missing__(self, name: str) -> SpeedtronicConfig:
            scenario = SCENARIOS[name]
            config = recipe(folder / str(len(made)), scenario.dataset, scenario.args)
            made[name] = config.override(scenario.changes)
            train_from_config(made[name])
            self[name] = made[name]
            return made[name]

    return Runs()


def assert_identical(config: SpeedtronicConfig, reference: SpeedtronicConfig) -> None:
    assert newest(config).step == newest(reference).step == NUM_STEPS
    assert newest(config).samples == NUM_STEPS * config.data.target_batch_size
    mine, theirs = load(config), load(reference)
    for state in (mine, theirs):
        for key in ("source", "source_at"):  # opaque: says the same in other words
            state["data"].pop(key, None)
    assert mine["data"] == theirs["data"]
    assert_same_tensors(mine, theirs)
    assert newest(config).state_digest == newest(reference).state_digest


@pytest.mark.parametrize("stops", STOPS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_resumes_end_in_the_state_of_the_uninterrupted_run(
    name: str, stops: str, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    scenario = SCENARIOS[name]
    config = recipe(tmp_path, scenario.dataset, scenario.args).override(scenario.changes)
    for target in [*STOPS[stops], NUM_STEPS]:
        assert train_from_config(config, resume=True, max_steps=target).steps == target
    assert_identical(config, uninterrupted[name])


def test_map_style_ends_the_same_with_any_number_of_workers(uninterrupted: Uninterrupted) -> None:
    digests = {
        newest(uninterrupted[name]).state_digest for name in SCENARIOS if name.startswith("map")
    }
    assert len(digests) == 1


def test_the_scenarios_differ(uninterrupted: Uninterrupted) -> None:
    names = [name for name in SCENARIOS if not name.endswith("workers")]
    digests = {newest(uninterrupted[name]).state_digest for name in names}
    # Hugging Face's iterables give the same samples, one of them through a map that keeps them.
    assert len(digests) >= len(names) - 1
    for name in names:
        losses = load(uninterrupted[name])["loss"]
        assert losses > 0


def test_a_stop_between_two_saves_resumes_from_the_first(
    uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    changes = {"checkpoint.every_steps": 4, "checkpoint.save_on_stop": False}
    config = recipe(tmp_path, "stateful_stream", {}).override(changes)
    for target in (6, 11, 15, NUM_STEPS):
        train_from_config(config, resume=True, max_steps=target)
    assert_identical(config, uninterrupted["iterable, by its state"])


@pytest.mark.parametrize("factory", ["augmented", "hf_map"])
def test_a_dataset_that_shrank_is_refused(
    factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe(tmp_path, factory, {"num_items": 16})
    train_from_config(config, max_steps=2)
    whole = getattr(own_parts, factory)
    monkeypatch.setattr(own_parts, factory, lambda num_items: whole(12))
    with pytest.raises(DriftError, match=r"data\.fingerprint"):
        train_from_config(config, resume=True)
    result = train_from_config(config, resume=True, max_steps=4, allow_changes=["data.fingerprint"])
    assert (result.steps, result.samples) == (4, 16)


def test_a_stream_that_shrank_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe(tmp_path, "stream", {})
    train_from_config(config, max_steps=5)
    monkeypatch.setattr(own_parts, "stream", lambda: own_parts.Stream(12))
    with pytest.raises(RestoreError, match="Stream is not the one of the checkpoint"):
        train_from_config(config, resume=True)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dataset", ["Crops", "Lines", "batches"])
def test_the_page_on_ones_own_parts_runs(dataset: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "bring-your-own.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(python|yaml)\n(.*?)```", text, re.DOTALL)
    code = "\n".join(block for kind, block in blocks if kind == "python")
    (yaml,) = (block for kind, block in blocks if kind == "yaml")
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(yaml, encoding="utf-8")
    changes = ["--set", f"data.dataset=mine:{dataset}"]
    if dataset != "Crops":
        changes += ["--set", "data.num_workers=0", "--set", "data.shuffle=false"]
    ended = subprocess.run(
        [sys.executable, "-m", "speedtronic", "train", "--config", "mine.yaml", *changes],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "runs/checkpoints/step_000000000006.pt").is_file()
