"""The JSON schema takes what the loader takes, and the page of the documentation is current."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from speedtronic.cli import main
from speedtronic.config.config import SpeedtronicConfig
from speedtronic.config.json_schema import json_schema, markdown_page
from speedtronic.config.overrides import FLAGS, SHORTCUTS
from speedtronic.config.parsing import parse_file, parse_yaml
from speedtronic.errors import ConfigError

ROOT = Path(__file__).parents[3]
SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


def loads(given: Any) -> bool:
    try:
        SpeedtronicConfig.from_dict(given)
    except ConfigError:
        return False
    return True


def keys() -> dict[str, dict[str, Any]]:
    """`run.seed` -> its part of the schema, for every key of every section."""
    return {
        f"{section}.{key}": node
        for section in SpeedtronicConfig.model_fields
        if section not in FLAGS
        for key, node in SCHEMA["$defs"][f"{section.title()}Config"]["properties"].items()
    }


def test_it_is_a_schema_of_the_draft_it_names() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_it_takes_the_recipes(file: Path) -> None:
    VALIDATOR.validate(parse_file(str(file)))


def test_it_takes_every_default_written_out() -> None:
    VALIDATOR.validate(SpeedtronicConfig().to_dict())


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{run: null, validation: null}",
        "{name: x, seed: 5, device: cpu, max_steps: 4, output_dir: here}",
        "{optimizer: {lr: 3e-4, eps: 1e-8}}",
        "{optimizer: {betas: [0.8, 9e-1], grad_clip: null}}",
        "{model: {d_ff: null, n_kv_head: null}, data: {synthetic: null, seed: null}}",
        "{model: {name: 'mine:build', depth: [1, 2]}}",
        "{data: {text_path: [a, 'b*'], dataset_args: null}, model: {vocab_size: 256}}",
        "{data: {dataset: 'a.b:c', dataset_args: {x: {y: [1]}}}}",
        "{checkpoint: {keep_last: null}, logging: {json_file: null, level: debug}}",
        "{logging: {hooks: [tensorboard, 'a:b']}, compile: true}",
    ],
)
def test_it_takes_what_the_loader_takes(text: str) -> None:
    given = parse_yaml(text)
    assert loads(given)
    VALIDATOR.validate(given)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{unknown: 1}",
        "{run: {sede: 5}}",
        "{run: {seed: '5'}}",
        "{run: {seed: -1}}",
        "{run: {max_steps: 0}}",
        "{max_steps: 0}",
        "{run: {device: tpu}}",
        "{run: {name: ''}}",
        "{run: {name: null}}",
        "{optimizer: {lr: 0}}",
        "{optimizer: {lr: fast}}",
        "{optimizer: {betas: [0.9]}}",
        "{optimizer: {betas: [0.9, 1.0]}}",
        "{scheduler: {min_lr_ratio: 1.1}}",
        "{data: {dataset: no_colon}}",
        "{chunk: {hang_timeout_s: 0}}",
        "{logging: {hooks: tensorboard}}",
        "{logging: {level: LOUD}}",
        "{compile: 'yes'}",
    ],
)
def test_it_refuses_what_the_loader_refuses(text: str) -> None:
    given = parse_yaml(text)
    assert not loads(given)
    assert not VALIDATOR.is_valid(given)


@pytest.mark.parametrize("key", keys())
def test_a_key_has_a_meaning_and_its_schema_takes_its_default(key: str) -> None:
    node = keys()[key]
    assert node["description"].endswith(".")
    Draft202012Validator(node).validate(node.get("default", {}))


def test_a_shortcut_says_what_it_is_short_for() -> None:
    for key in SHORTCUTS:
        meaning = SCHEMA["properties"][key]["description"]
        assert meaning == f"Short for run.{key}. {keys()[f'run.{key}']['description']}"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_the_command_loads_no_torch() -> None:
    code = (
        "import sys; from speedtronic.cli import main; main(['schema']);"
        "sys.exit('torch' in sys.modules or 'prefect' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_the_page_is_current() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert written == markdown_page(), (
        "run python -m speedtronic.config.json_schema > docs/configuration.md"
    )


def test_the_page_names_every_key() -> None:
    sections = dict(part.split("\n", 1) for part in markdown_page().split("\n## "))
    for key in keys():
        section, name = key.split(".")
        assert f"| `{name}` |" in sections[section]
    for flag in FLAGS:
        assert f"| `{flag}` |" in sections["Top level"]
