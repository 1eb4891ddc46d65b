"""Factories of the user's own code: how they are called, and what is said of their exceptions."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.config.sections import ModelConfig
from speedtronic.data.build import build_loader
from speedtronic.data.tokens import TokenSource, load_tokenizer
from speedtronic.data.validation import validation_batches
from speedtronic.errors import ConfigError, DataError
from speedtronic.model import build_model
from speedtronic.runtime.hooks import build_hooks

CODE = """
import json

def no_split(split, n=0):
    raise RuntimeError("no such split")

def keywords(**given):
    print(sorted(given.items()))
    return [1, 2, 3]

def mapping(args):
    print(sorted(args.items()))
    return [1, 2, 3]

def deep(text):
    def below(x):
        return json.loads(x)
    return below(text)

class Split:
    def __init__(self, split):
        self.split = split

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index

def connect(password, url, other):
    raise ValueError(f"refused: {password} {url} {other}")

def hook(config, output_dir):
    raise RuntimeError("no server")

class Words:
    def encode(self, text):
        return [{}[text]]

words = Words()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory, another one for each test."""
    name = f"code_of_{re.sub(r'[^a-z0-9]', '_', tmp_path.name.lower())}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def line_of(text: str) -> int:
    return CODE.splitlines().index(text) + 1


def load_data(name: str, /, **args: Any) -> None:
    config = SpeedtronicConfig.from_dict({"data": {"dataset": name, "dataset_args": args}})
    build_loader(config, pin_memory=False).close()


def load_validation(name: str, /, **args: Any) -> None:
    section = {"dataset": name, "dataset_args": args, "every_steps": 1}
    validation_batches(SpeedtronicConfig.from_dict({"validation": section}))


def load_model(name: str, /, **args: Any) -> None:
    build_model(ModelConfig.model_validate({"name": name, **args}))


LOADS = {
    "data.dataset": load_data,
    "validation.dataset": load_validation,
    "model.name": load_model,
}


def refusal(key: str, name: str, /, **args: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        LOADS[key](name, **args)
    return str(caught.value)


@pytest.mark.parametrize("key", LOADS)
def test_an_exception_is_told_with_factory_line_and_arguments(key: str, module: str) -> None:
    line = line_of('    raise RuntimeError("no such split")')
    assert refusal(key, f"{module}:no_split", split="train", n=3) == (
        f"{key} is '{module}:no_split'; it raised RuntimeError: no such split "
        f"(at {module}.py:{line} in no_split; called with split='train', n=3)"
    )


@pytest.mark.parametrize("key", LOADS)
def test_the_line_is_the_users_own(key: str, module: str) -> None:
    line = line_of("        return json.loads(x)")
    said = refusal(key, f"{module}:deep", text="{")
    assert f"(at {module}.py:{line} in below; called with text='{{')" in said


@pytest.mark.parametrize("key", LOADS)
def test_arguments_that_do_not_fit_are_told_with_the_definition(key: str, module: str) -> None:
    said = refusal(key, f"{module}:no_split", splt="train")
    assert "unexpected keyword argument 'splt'" in said
    assert f"(at {module}.py:{line_of('def no_split(split, n=0):')} in no_split; called" in said
    said = refusal(key, f"{module}:Split")
    assert "missing 1 required positional argument: 'split'" in said
    line = line_of("    def __init__(self, split):")
    assert said.endswith(f"(at {module}.py:{line} in __init__; called without arguments)")


@pytest.mark.parametrize("key", ["data.dataset", "validation.dataset"])
def test_data_factories_get_keyword_arguments(
    key: str, module: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    LOADS[key](f"{module}:keywords", args=1, key=2, name=3)
    assert capsys.readouterr().out == "[('args', 1), ('key', 2), ('name', 3)]\n"
    LOADS[key](f"{module}:Split", split="a")
    assert not caplog.records


@pytest.mark.parametrize("key", ["data.dataset", "validation.dataset"])
def test_a_lone_parameter_named_args_gets_the_mapping_and_one_warning(
    key: str, module: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        LOADS[key](f"{module}:mapping", a=1, b=[2])
        LOADS[key](f"{module}:mapping")
    assert capsys.readouterr().out == "[('a', 1), ('b', [2])]\n[]\n"
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"{key} is '{module}:mapping', whose only parameter is named args: it is called with the "
        f"whole mapping {key}_args"
    )


@pytest.mark.parametrize("key", LOADS)
def test_secrets_stay_out_of_the_message(
    key: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", "ab!")  # too short to be looked for
    monkeypatch.setenv("DB_PASSWORD", "hunter2-0123456789")
    args = {"password": "opensesame", "url": "https://me:${DB_PASSWORD}@db", "other": "x${PW}"}
    said = refusal(key, f"{module}:connect", **args)
    shown = said.partition("; called with ")[2]
    assert shown == "password='***', url='https://me:${DB_PASSWORD}@db', other='x${PW}')"
    assert "opensesame" not in said and "hunter2" not in said


def test_a_hook_and_a_tokenizer_are_told_alike(module: str, tmp_path: Path) -> None:
    config = SpeedtronicConfig.from_dict({"logging": {"hooks": [f"{module}:hook"]}})
    with pytest.raises(ConfigError) as caught:
        build_hooks(config, tmp_path)
    line = line_of('    raise RuntimeError("no server")')
    assert str(caught.value) == (
        f"logging.hooks is '{module}:hook'; it raised RuntimeError: no server "
        f"(at {module}.py:{line} in hook; called with config=SpeedtronicConfig, "
        f"output_dir='{tmp_path}')"
    )
    file = tmp_path / "a.txt"
    file.write_text("abc")
    name = f"{module}:words"
    encode = load_tokenizer(name)
    with pytest.raises(DataError) as failed:
        TokenSource([file], encode, vocab_size=9, block_size=1, tokenizer=name)
    assert str(failed.value) == (
        f"data.tokenizer '{name}' failed on {file}: KeyError: 'abc' "
        f"(at {module}.py:{line_of('        return [{}[text]]')} in encode)"
    )


def test_a_module_that_raises_is_told_with_the_line(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}_broken.py").write_text("x = 1\ny = x.absent\n")
    said = refusal("data.dataset", f"{module}_broken:make")
    assert said.endswith(f"has no attribute 'absent' (at {module}_broken.py:2)")
    assert "it does not import: AttributeError" in said
    assert "(at" not in refusal("data.dataset", "no_such_module:make")
