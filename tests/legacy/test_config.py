"""Configurations of 2.0 in today's form: `speedtronic validate --legacy`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from speedtronic.cli import main
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError
from speedtronic.legacy.config import load, translate
from tests.legacy.old_runs import FILES

Capture = pytest.CaptureFixture[str]
RESOLVED = json.loads((FILES / "resolved.json").read_text(encoding="utf-8"))

# What today's form says otherwise, on purpose.
OTHERWISE = {
    "model.name": "gpt is the reference model",
    "model.gradient_checkpointing": "has moved to the top level",
    "run.log_every": "is logging.every_steps",
    "run.max_steps": "data.max_steps won",
    "data.max_steps": "won over run.max_steps",
    "data.num_tokens": "counted samples, or nothing",
    "data.synthetic": "did not count beside a text",
    "data.vocab_size": "did not count",
    "data.prefetch_factor": "did not count without workers",
    "precision.mode": "precision.dtype stood in for auto",
    "logging.json_file": "has a default today",
}


def leaves(values: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for section, given in values.items():
        if isinstance(given, dict):
            found |= {f"{section}.{key}": value for key, value in given.items()}
        else:
            found[section] = given
    return found


def of(values: dict[str, Any]) -> SpeedtronicConfig:
    return SpeedtronicConfig.from_dict(translate(values)[0])


# --- whole files ---


@pytest.mark.parametrize("name", ["full", "short"])
def test_a_file_means_what_it_meant(name: str) -> None:
    config, ignored = load(FILES / f"{name}.yaml")
    old, new = leaves(RESOLVED[name]), leaves(config.to_dict())
    assert set(OTHERWISE) <= old.keys()
    for key in old.keys() - OTHERWISE.keys():
        if key in new:
            assert new[key] == old[key], key
        else:
            assert key.startswith(("distributed.", "shape_validation.", "ooo_", "optimizer.")) or (
                key == "precision.dtype"
            ), key
            assert name == "short" or key in ignored


def test_the_full_file_says_what_moved() -> None:
    config, ignored = load(FILES / "full.yaml")
    assert config.run.max_steps == 800
    assert config.scheduler.max_steps == 700
    assert config.precision.mode == "bf16" and "precision.dtype" in ignored
    assert config.data.text_path == "some/text.txt" and not config.data.synthetic
    assert config.data.num_tokens is None and "data.num_tokens" in ignored
    assert config.data.prefetch_factor == 3
    assert config.gradient_checkpointing


def test_the_short_file_says_what_moved() -> None:
    config, ignored = load(FILES / "short.yaml")
    assert config.model.name == "reference_transformer"
    assert config.optimizer.name == "adamw"
    assert config.precision.mode == "fp32" and "precision.dtype" not in ignored
    assert config.compile and config.gradient_checkpointing
    assert config.logging.every_steps == 5
    assert config.run.max_steps == config.scheduler.max_steps == 40
    assert config.data.num_tokens == 50 * 32 + 1  # fifty samples
    assert config.data.prefetch_factor is None
    assert ignored == [
        "shape_validation.alignment",
        "hub.repo_id",
        "hub.collaborators",
        "hub.token",
        "ooo_backprop",
        "muon_plus",
        "cautious",
        "data.prefetch_factor",
    ]


def test_defaults_of_2_0_that_change_a_run() -> None:
    config = of({})
    assert config.checkpoint.every_steps == 500
    assert config.checkpoint.save_on_stop  # it saved at its end, whatever the interval
    assert config.logging.every_steps == 1
    assert config.scheduler.max_steps == config.run.max_steps == 1000


# --- the command ---


def test_validate_prints_a_file_that_loads(tmp_path: Path, capsys: Capture) -> None:
    assert main(["validate", "--legacy", "--config", str(FILES / "short.yaml")]) == 0
    said = capsys.readouterr()
    file = tmp_path / "today.yaml"
    file.write_text(said.out, encoding="utf-8")
    assert SpeedtronicConfig.load(file) == load(FILES / "short.yaml")[0]
    [line] = said.err.splitlines()
    assert line.startswith(f"speedtronic: {FILES / 'short.yaml'}: ")
    for key in load(FILES / "short.yaml")[1]:
        assert f" {key}" in line
    assert "hunter2" not in said.out + said.err


def test_nothing_left_out_is_no_warning(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("max_steps: 5\n", encoding="utf-8")
    changed = ["--set", "run.max_steps=6"]
    assert main(["validate", "--legacy", "--config", str(file), *changed]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    shown = yaml.safe_load(said.out)
    assert (shown["run"]["max_steps"], shown["scheduler"]["max_steps"]) == (6, 5)


@pytest.mark.parametrize("command", ["validate", "train"])
def test_without_legacy_the_keys_stay_unknown(command: str, capsys: Capture) -> None:
    assert main([command, "--config", str(FILES / "full.yaml")]) == 2
    err = capsys.readouterr().err
    assert "distributed: unknown key" in err
    assert "shape_validation: unknown key" in err
    assert err.splitlines()[-1] == (
        f"{FILES / 'full.yaml'} is of Speedtronic 2.0; speedtronic validate --legacy prints it in "
        "today's form"
    )


def test_a_slip_is_not_taken_for_2_0(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optimzer: {lr: 1}\n", encoding="utf-8")
    assert main(["validate", "--config", str(file)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("optimzer: unknown key; did you mean 'optimizer'?")


def test_validate_legacy_loads_no_torch() -> None:
    code = (
        "from speedtronic.cli import main; import sys; "
        f"main(['validate', '--legacy', '--config', {str(FILES / 'full.yaml')!r}]); "
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "False"


# --- one key at a time ---

IGNORED = [
    *[f"distributed.{key}" for key in RESOLVED["full"]["distributed"]],
    *[f"hub.{key}" for key in ("cache_dir", "collaborators", "repo_id", "token")],
    *[f"diloco.{key}" for key in ("inner_steps", "outer_lr")],
    *[f"shape_validation.{key}" for key in RESOLVED["full"]["shape_validation"]],
    *["ooo_backprop", "ooo_streams", "muon_plus", "cautious"],
    *[f"optimizer.{key}" for key in ("muon_plus", "cautious")],
    *[f"optimizer.muon_{key}" for key in ("momentum", "ns_steps", "norm_eps")],
    "data.vocab_size",
]


@pytest.mark.parametrize("key", IGNORED)
def test_a_key_without_effect_is_accepted_and_named(key: str) -> None:
    section, _, name = key.rpartition(".")
    values, ignored = translate({section: {name: 1}} if section else {name: 1})
    assert ignored == [key]
    assert SpeedtronicConfig.from_dict(values) == of({})


@pytest.mark.parametrize("section", ["shape_validation", "distributed", "hub", "diloco"])
def test_an_empty_section_without_effect(section: str) -> None:
    assert translate({section: None})[1] == [section]


@pytest.mark.parametrize(
    ("old", "key", "value"),
    [
        ({"name": "x"}, "run.name", "x"),
        ({"seed": 5, "run": {"seed": 6}}, "run.seed", 5),  # the alias won
        ({"device": "cpu"}, "run.device", "cpu"),
        ({"output_dir": "o"}, "run.output_dir", "o"),
        ({"log_every": 3}, "logging.every_steps", 3),
        ({"run": {"log_every": 3}}, "logging.every_steps", 3),
        ({"log_every": 3, "logging": {"every_steps": 2}}, "logging.every_steps", 2),
        ({"optimizer": "muon"}, "optimizer.name", "muon"),
        ({"optimizer": {"name": " AdamW "}}, "optimizer.name", "adamw"),
        ({"scheduler": {"name": "Constant"}}, "scheduler.name", "constant"),
        ({"precision": "fp32"}, "precision.mode", "fp32"),
        ({"precision": {"mode": "BF16"}}, "precision.mode", "bf16"),
        ({"precision": {"mode": "auto", "dtype": "BF16"}}, "precision.mode", "bf16"),
        ({"compile": {"enabled": True}}, "compile", True),
        ({"compile": {}}, "compile", False),
        ({"compile": True}, "compile", True),
        ({"model": {"name": "gpt"}}, "model.name", "reference_transformer"),
        ({"model": {"gradient_checkpointing": True}}, "gradient_checkpointing", True),
        ({"gradient_checkpointing": True}, "gradient_checkpointing", True),
        ({"checkpoint": {"every_steps": 7}}, "checkpoint.every_steps", 7),
        ({"data": {"num_tokens": 10}, "model": {"max_seq_len": 64}}, "data.num_tokens", 641),
        ({"data": {"num_tokens": 10}}, "data.num_tokens", 1281),
        ({"data": {"text_path": "t.txt", "synthetic": True}}, "data.synthetic", False),
        ({"data": {"dataset": "mine:make"}}, "data.dataset", "mine:make"),
        ({"data": {"text_path": "t.txt", "dataset": "x.pt"}}, "data.dataset", None),
    ],
)
def test_a_value_is_translated(old: dict[str, Any], key: str, value: object) -> None:
    assert leaves(of(old).to_dict())[key] == value


@pytest.mark.parametrize(
    ("run", "scheduler", "data", "target", "horizon"),
    [
        (None, None, None, 1000, 1000),
        (200, None, None, 200, 200),
        (200, 1000, None, 200, 200),  # 2.0 took a 1000 for its default
        (200, 300, None, 200, 300),
        (None, 300, None, 1000, 300),
        (None, None, 50, 50, 50),
        (200, None, 50, 50, 200),
        (200, 300, 50, 50, 300),
    ],
)
def test_target_and_horizon_are_those_of_2_0(
    run: int | None, scheduler: int | None, data: int | None, target: int, horizon: int
) -> None:
    given = {"run": run, "scheduler": scheduler, "data": data}
    config = of({name: {"max_steps": n} for name, n in given.items() if n is not None})
    assert (config.run.max_steps, config.scheduler.max_steps) == (target, horizon)


# --- what stays refused ---


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimzer: {lr: 1}", "optimzer: unknown key; did you mean 'optimizer'?"),
        ("data: {blok_size: 4}", "data.blok_size: unknown key; did you mean 'block_size'?"),
        ("model: 3", "model is 3; it must be a mapping of keys to values"),
        ("- 1", "the top level must be a mapping of keys to values"),
        (
            "data: {dataset: my.pt}",
            "data.dataset is 'my.pt', a pickled data set, which is not read any more; name a "
            "factory, package.module:factory, that returns it",
        ),
    ],
)
def test_bad_input_is_one_line_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: {message}"


def test_the_given_mapping_is_left_alone() -> None:
    given = {"run": {"max_steps": 3}, "data": {"vocab_size": 3}, "optimizer": "adamw"}
    before = json.dumps(given)
    translate(given)
    assert json.dumps(given) == before
