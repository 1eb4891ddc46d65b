"""The configuration: defaults, what follows what, and a clear line for every mistake."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from speedtronic.config.config import SpeedtronicConfig, split_target
from speedtronic.config.parsing import parse_assignment
from speedtronic.config.sections import DataConfig, Section
from speedtronic.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "configs"


def nested(dotted: str, value: object) -> dict[str, Any]:
    """`nested("a.b", 1)` is `{"a": {"b": 1}}`."""
    *sections, key = dotted.split(".")
    given: dict[str, Any] = {key: value}
    for section in reversed(sections):
        given = {section: given}
    return given


def get(config: SpeedtronicConfig, dotted: str) -> object:
    section, key = dotted.split(".")
    return getattr(getattr(config, section), key)


def refusal(given: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        SpeedtronicConfig.from_dict(given)
    return str(caught.value)


# --- defaults and derived values ---

DEFAULTS: dict[str, Any] = {
    "run": {
        "name": "speedtronic",
        "seed": 1234,
        "device": "auto",
        "max_steps": 1000,
        "output_dir": "runs",
    },
    "model": {
        "name": "reference_transformer",
        "vocab_size": 512,
        "max_seq_len": 128,
        "n_layer": 4,
        "n_head": 8,
        "n_kv_head": 8,
        "d_model": 256,
        "d_ff": 1024,
        "dropout": 0.0,
        "tie_weights": True,
        "rope_base": 10000.0,
    },
    "data": {
        "text_path": None,
        "tokenizer": None,
        "encoding_errors": "strict",
        "dataset": None,
        "dataset_args": {},
        "synthetic": True,
        "num_tokens": None,
        "block_size": 128,
        "micro_batch_size": 1,
        "target_batch_size": 1,
        "num_workers": 0,
        "prefetch_factor": None,
        "pin_memory": None,
        "shuffle": False,
        "drop_last": True,
        "seed": 1234,
    },
    "validation": {
        "every_steps": None,
        "text_path": None,
        "dataset": None,
        "dataset_args": {},
        "max_batches": None,
    },
    "optimizer": {
        "name": "adamw",
        "lr": 3e-4,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 0.1,
        "fused": None,
        "grad_clip": None,
    },
    "scheduler": {"name": "cosine", "warmup_steps": 100, "max_steps": None, "min_lr_ratio": 0.1},
    "precision": {"mode": "auto"},
    "checkpoint": {
        "enabled": True,
        "directory": "checkpoints",
        "every_steps": 100,
        "keep_last": 3,
        "keep_best": None,
        "keep_every": None,
        "async_save": True,
        "resume": False,
        "save_on_stop": False,
    },
    "chunk": {
        "steps": 100,
        "retries": 3,
        "quarantine_after": 3,
        "retry_delay_s": 1.0,
        "hang_timeout_s": 1800.0,
        "standby": True,
    },
    "logging": {
        "level": "INFO",
        "file": None,
        "json_file": "metrics.jsonl",
        "every_steps": 10,
        "hooks": [],
    },
}
FLAGS = {"compile": False, "gradient_checkpointing": False}


@pytest.mark.parametrize("given", [None, {}, dict.fromkeys(DEFAULTS)])
def test_nothing_given_means_every_default(given: Any) -> None:
    assert SpeedtronicConfig.from_dict(given).to_dict() == DEFAULTS | FLAGS


DERIVED = [
    ("model.n_head", 4, "model.n_kv_head", 4),
    ("model.d_model", 64, "model.d_ff", 256),
    ("model.max_seq_len", 64, "data.block_size", 64),
    ("run.seed", 5, "data.seed", 5),
    ("checkpoint.every_steps", 20, "chunk.steps", 20),
    ("data.text_path", "a.txt", "data.synthetic", False),
]


@pytest.mark.parametrize(("key", "value", "follower", "expected"), DERIVED)
@pytest.mark.parametrize("explicit_null", [False, True])
def test_a_missing_or_null_value_follows_another(
    key: str, value: object, follower: str, expected: object, explicit_null: bool
) -> None:
    base = SpeedtronicConfig.from_dict(nested(follower, None) if explicit_null else {})
    assert get(base.override({key: value}), follower) == expected
    assert get(base, follower) != expected


@pytest.mark.parametrize(
    ("key", "value"), [("run.seed", 5), ("model.d_model", 64), ("model.max_seq_len", 256)]
)
def test_a_given_value_follows_nothing(key: str, value: int) -> None:
    given = {"model": {"d_ff": 100}, "data": {"seed": 7, "block_size": 16}}
    config = SpeedtronicConfig.from_dict(given).override({key: value})
    assert (config.model.d_ff, config.data.seed, config.data.block_size) == (100, 7, 16)


def test_the_horizon_of_the_schedule_stays_open() -> None:
    assert SpeedtronicConfig.from_dict({"max_steps": 7}).scheduler.max_steps is None


def test_a_section_passed_as_an_object_is_left_as_it_was() -> None:
    shared = DataConfig()
    first = SpeedtronicConfig(data=shared)
    second = SpeedtronicConfig.from_dict({"seed": 5, "data": shared})
    assert (first.data.seed, second.data.seed, shared.seed) == (1234, 5, None)


def test_every_field_is_described() -> None:
    sections: list[type[Section]] = [SpeedtronicConfig, *Section.__subclasses__()]
    assert len(sections) > len(DEFAULTS)
    missing = [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert missing == []


def test_a_config_is_frozen_and_survives_pickling() -> None:
    config = SpeedtronicConfig.from_dict({"data": {"text_path": ["a", "b"]}})
    with pytest.raises(ValidationError, match="frozen"):
        config.run.seed = 3
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.override({"seed": 5}).data.seed == 5


# --- values ---


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("optimizer.lr", "3e-4", 3e-4),
        ("optimizer.lr", 1, 1.0),
        ("optimizer.betas", ["9e-1", 0], (0.9, 0.0)),
        ("optimizer.grad_clip", 1, 1.0),
        ("logging.level", "debug", "DEBUG"),
        ("logging.json_file", None, None),
        ("checkpoint.keep_last", None, None),
        ("run.output_dir", Path("a/b"), "a/b"),
        ("data.text_path", Path("a/b"), "a/b"),
        ("data.text_path", ["a", Path("b")], ("a", "b")),
        ("scheduler.min_lr_ratio", 1, 1.0),
        ("model.dropout", 0, 0.0),
    ],
)
def test_accepted(key: str, value: object, expected: object) -> None:
    found = get(SpeedtronicConfig.from_dict(nested(key, value)), key)
    assert found == expected and type(found) is type(expected)


INTEGER, NUMBER, TRUTH, TEXT = "valid integer", "valid number", "valid boolean", "valid string"
REFUSED = [
    ("run.max_steps", "ten", "'ten'", INTEGER),
    ("run.max_steps", 1.5, "1.5", INTEGER),
    ("run.max_steps", 2.0, "2.0", INTEGER),
    ("run.max_steps", True, "true", INTEGER),
    ("run.max_steps", None, "null", INTEGER),
    ("run.max_steps", 0, "0", "greater than or equal to 1"),
    ("run.seed", -1, "-1", "greater than or equal to 0"),
    ("run.seed", 2**32, "4294967296", "less than 4294967296"),
    ("run.device", "tpu", "'tpu'", "'auto', 'cpu', 'cuda' or 'mps'"),
    ("run.name", 3, "3", TEXT),
    ("run.output_dir", "", "''", "at least 1 character"),
    ("model.n_layer", 0, "0", "greater than or equal to 1"),
    ("model.dropout", 1.0, "1.0", "less than 1"),
    ("model.dropout", -0.1, "-0.1", "greater than or equal to 0"),
    ("model.tie_weights", 1, "1", TRUTH),
    ("model.rope_base", 0, "0", "greater than 0"),
    ("data.num_tokens", 1, "1", "greater than or equal to 2"),
    ("data.num_workers", -1, "-1", "greater than or equal to 0"),
    ("data.prefetch_factor", 0, "0", "greater than or equal to 1"),
    ("data.pin_memory", "maybe", "'maybe'", TRUTH),
    ("data.text_path", "", "''", "a file, a glob or a list of them"),
    ("data.text_path", [], "[]", "a file, a glob or a list of them"),
    ("data.text_path", ["a", 3], "['a', 3]", "a file, a glob or a list of them"),
    ("optimizer.name", "sgd", "'sgd'", "'adamw'"),
    ("optimizer.lr", "abc", "'abc'", NUMBER),
    ("optimizer.lr", True, "true", NUMBER),
    ("optimizer.lr", 0, "0", "greater than 0"),
    ("optimizer.eps", 0.0, "0.0", "greater than 0"),
    ("optimizer.weight_decay", -1, "-1", "greater than or equal to 0"),
    ("optimizer.grad_clip", 0, "0", "greater than 0"),
    ("optimizer.betas", 0.9, "0.9", "a list of two numbers"),
    ("optimizer.betas", [0.9], "[0.9]", "a list of two numbers"),
    ("scheduler.name", "linear", "'linear'", "'cosine' or 'constant'"),
    ("scheduler.warmup_steps", -1, "-1", "greater than or equal to 0"),
    ("scheduler.max_steps", 0, "0", "greater than or equal to 1"),
    ("scheduler.min_lr_ratio", 1.1, "1.1", "less than or equal to 1"),
    ("precision.mode", "int8", "'int8'", "'auto', 'bf16', 'fp16' or 'fp32'"),
    ("checkpoint.every_steps", 0, "0", "greater than or equal to 1"),
    ("checkpoint.keep_last", 0, "0", "greater than or equal to 1"),
    ("checkpoint.resume", "yes please", "'yes please'", TRUTH),
    ("chunk.retries", -1, "-1", "greater than or equal to 0"),
    ("chunk.retry_delay_s", -1, "-1", "greater than or equal to 0"),
    ("chunk.hang_timeout_s", 0, "0", "greater than 0"),
    ("logging.level", "loud", "'loud'", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ("logging.every_steps", 0, "0", "greater than or equal to 1"),
]


@pytest.mark.parametrize(("key", "value", "found", "allowed"), REFUSED)
def test_a_bad_value_is_named_with_what_is_allowed(
    key: str, value: object, found: str, allowed: str
) -> None:
    message = refusal(nested(key, value))
    assert message.startswith(f"{key} is {found}; it must ")
    assert allowed in message and "\n" not in message


def test_one_bad_entry_of_a_list_is_named() -> None:
    message = refusal({"optimizer": {"betas": [0.9, 1]}})
    assert message == "optimizer.betas[1] is 1; it must be less than 1"


FLOATS = [
    f"{section}.{key}"
    for section, values in DEFAULTS.items()
    for key, value in values.items()
    if isinstance(value, float) or key == "grad_clip"
]


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan", "-inf"])
def test_no_float_is_nan_or_infinite(key: str, value: object) -> None:
    message = refusal(nested(key, value))
    assert message.startswith(f"{key} is ") and message.endswith("must be a finite number")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"model": {"n_head": 4, "n_kv_head": 3}},
            "model.n_kv_head is 3; it must divide model.n_head, 4",
        ),
        ({"model": {"d_model": 100}}, "model.d_model is 100; it must be a multiple of model.n_hea"),
        ({"model": {"d_model": 24}}, "model.d_model is 24; over model.n_head, 8, that is 3 per he"),
        (
            {"data": {"block_size": 129}},
            "data.block_size is 129; it must be at most model.max_seq_len, 128",
        ),
        (
            {"data": {"micro_batch_size": 4, "target_batch_size": 6}},
            "data.target_batch_size is 6; it must be a multiple of data.micro_batch_size, 4",
        ),
        (
            {"data": {"prefetch_factor": 2}},
            "data.prefetch_factor is 2; it must be null while data.num_workers is 0",
        ),
        (
            {"data": {"encoding_errors": "skip", "text_path": "a"}},
            "data.encoding_errors is 'skip'; it is for data.tokenizer, which is null",
        ),
        ({"data": {"synthetic": False}}, "data.synthetic is false; then data.text_path must name"),
        (
            {"data": {"synthetic": True, "text_path": "a"}},
            "data.synthetic is true and data.text_path is given; leave one of them out",
        ),
        (
            {"model": {"vocab_size": 255}, "data": {"text_path": "a"}},
            "model.vocab_size is 255; it must be at least 256 for data.text_path",
        ),
        (
            {"chunk": {"steps": 150}},
            "chunk.steps is 150; it must be a multiple of checkpoint.every_steps, 100",
        ),
    ],
)
def test_values_that_do_not_go_together(given: dict[str, Any], expected: str) -> None:
    message = refusal(given)
    assert message.startswith(expected) and "\n" not in message


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"n_head": 4, "n_kv_head": 2, "d_model": 24}},
        {"data": {"block_size": 128, "num_workers": 1, "prefetch_factor": 1}},
        {"data": {"micro_batch_size": 3, "target_batch_size": 6}},
        {"model": {"vocab_size": 256}, "data": {"text_path": "a", "synthetic": False}},
        {"model": {"vocab_size": 2}, "data": {"num_tokens": 2}},
        {"chunk": {"steps": 200}},
    ],
)
def test_values_that_just_go_together(given: dict[str, Any]) -> None:
    SpeedtronicConfig.from_dict(given)


def test_every_problem_has_a_line_of_its_own() -> None:
    given = {"max_step": 1, "model": {"n_head": 3, "n_kv_head": 2}, "run": {"seed": "x"}}
    assert sorted(refusal(given).split("\n")) == [
        "max_step: unknown key; did you mean 'max_steps'?",
        "model.d_model is 256; it must be a multiple of model.n_head, 3",
        "model.n_kv_head is 2; it must divide model.n_head, 3",
        "run.seed is 'x'; it must be a valid integer",
    ]


# --- keys ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"run": {"max_stps": 4}}, "run.max_stps: unknown key; did you mean 'max_steps'?"),
        ({"modle": {}}, "modle: unknown key; did you mean 'model'?"),
        ({"lr": 1}, "lr: unknown key; did you mean 'optimizer.lr'?"),
        ({"model": {"lr": 1}}, "model.lr: unknown key; did you mean 'optimizer.lr'?"),
        ({"chunk": {"zzz": 1}}, "allowed are steps, retries, quarantine_after, retry_delay_s"),
        ({"zzz": 1}, "zzz: unknown key; allowed are run, model, data, "),
        ({"zzz": None}, "zzz: unknown key"),
        ({"run": {"a\nb": 1}}, r"run.a\nb: unknown key"),
        ({1: 2}, "1: unknown key; allowed are run, model"),
        ({"run": {1: 2}}, "run.1: unknown key; allowed are name, seed"),
    ],
)
def test_an_unknown_key_names_the_nearest_or_the_allowed(given: Any, expected: str) -> None:
    message = refusal(given)
    assert expected in message and "\n" not in message


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([1, 2], "the top level is [1, 2]; it must be a mapping"),
        ("text", "the top level is 'text'; it must be a mapping"),
        ({"model": 3}, "model is 3; it must be a mapping"),
        ({"run": ["a"], "seed": 3}, "run is ['a']; it must be a mapping"),
    ],
)
def test_what_should_be_a_mapping(given: Any, expected: str) -> None:
    assert refusal(given).startswith(expected)


SHORT = {"name": "a", "seed": 5, "device": "cpu", "max_steps": 7, "output_dir": "b"}


@pytest.mark.parametrize("run", [{}, {"run": None}, {"run": {"seed": 5}}, {"run": SHORT}])
def test_shortcuts_stand_for_keys_of_run(run: dict[str, Any]) -> None:
    assert SpeedtronicConfig.from_dict({**SHORT, **run}).run.model_dump() == SHORT


def test_a_shortcut_that_contradicts_run() -> None:
    message = refusal({"seed": 5, "run": {"seed": 6}})
    assert message == ("seed is 5 but run.seed, which means the same, is 6; leave one of them out")


def test_a_bad_shortcut_is_named_in_full() -> None:
    assert refusal({"max_steps": "ten"}).startswith("run.max_steps is 'ten'; it must be")


# --- files ---


def load_text(folder: Path, text: str | bytes, name: str = "c.yaml") -> SpeedtronicConfig:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SpeedtronicConfig.load(file)


@pytest.mark.parametrize("text", ["", "# nothing\n", "null\n", "run:\n", "\ufeff", "{}"])
def test_an_empty_file_means_every_default(tmp_path: Path, text: str) -> None:
    assert load_text(tmp_path, text).to_dict() == DEFAULTS | FLAGS


def test_yaml(tmp_path: Path) -> None:
    text = "optimizer: {lr: 3e-4}\nname: 2026-01-31\ndata:\n  text_path: [ä, b]\n"
    config = load_text(tmp_path, text)
    assert (config.optimizer.lr, config.run.name) == (3e-4, "2026-01-31")
    assert config.data.text_path == ("ä", "b")


def test_json_with_a_byte_order_mark_and_tabs(tmp_path: Path) -> None:
    config = load_text(tmp_path, '\ufeff{\n\t"run": {\n\t\t"seed": 5\n\t}\n}', "c.json")
    assert config.run.seed == 5


def test_yaml_merge_keys_may_be_overridden(tmp_path: Path) -> None:
    text = "run: &r {seed: 5, max_steps: 3}\n<<: {seed: 6}\nseed: 5\n"
    assert load_text(tmp_path, text).run.seed == 5


@pytest.mark.parametrize("name", ["a b.yaml", "a%20b.yaml"])
def test_a_file_url_is_taken_literally(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("seed: 5")
    assert SpeedtronicConfig.load(f"file://{file}").run.seed == 5


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.yaml", "run:\n  seed: [1,\n", "line 3, column 1: "),
        ("c.yaml", "run:\n\tseed: 1\n", "line 2, column 1: found character '\\t'"),
        ("c.yaml", "a: 1\nb: \x07\n", "line 2, column 4: special characters are not allowed"),
        ("c.yaml", "seed: 1\nname: a\nseed: 1\n", "line 3, column 1: key 'seed' is given twice"),
        ("c.yaml", "run:\n  seed: 1\n  seed: 2\n", "line 3, column 3: key 'seed' is given twice"),
        ("c.yaml", "a: 1\n---\nb: 2\n", "line 2, column 1: "),
        ("c.yaml", "a: !!python/name:os.system\n", "line 1, column 4: could not determine a con"),
        ("c.yaml", "a: !!int x\n", "line 1, column 4: 'x' is no int"),
        ("c.yaml", "[" * 20_000, "line 1, column 61: nested too deeply"),
        ("c.json", '{"run": ' + "[" * 100_000, "is nested too deeply"),
        ("c.json", '{"seed": ' + "[" * 900 + "]" * 900 + "}", "run.seed is [[[[[["),
        ("c.yaml", "# " + "x" * 2**20, "is larger than 1048576 bytes"),
        ("c.yaml", b"name: \xff\n", "byte 6 is not UTF-8 text"),
        ("c.yaml", "- 1\n", "the top level is [1]; it must be a mapping"),
        ("c.yaml", "text\n", "the top level is 'text'; it must be a mapping"),
        ("c.yaml", "run: {seed: x}\n", "run.seed is 'x'; it must be a valid integer"),
        ("c.yaml", "sed: 1\n", "sed: unknown key; did you mean 'seed'?"),
        ("c.yaml", "name: &a [*a]\n", "line 1, column 11: an alias stands inside"),
        ("c.json", '{"run": {"seed": 1,}}', "line 1, column "),
        ("c.json", "", "line 1, column 1: "),
        ("c.json", '{"seed": 1, "seed": 1}', "line 1, column 13: key 'seed' is given twice"),
        (
            "c.json",
            '{"data": {"dataset_args": {"a": [{"b": "}",\n "\\u0062": 1}]}}}',
            "line 2, column 2: key 'b' is given twice",
        ),
        ("c.json", '{"optimizer": {"lr": NaN}}', "optimizer.lr is nan; it must be a finite number"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(
    tmp_path: Path, name: str, text: str | bytes, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text, name)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / name}: {expected}")
    assert "\n" not in message and "pydantic" not in message


NUMBERS = [("1e-4", 1e-4), ("1_000", 1000), ("1E5", 1e5), (".5", 0.5), ("+3", 3), ("3.e-4", 3e-4)]


@pytest.mark.parametrize(("text", "number"), NUMBERS)
def test_a_number_is_the_same_in_ours_and_in_a_mapping_of_one_s_own(
    tmp_path: Path, text: str, number: float
) -> None:
    own = f"{{a: {text}, b: [{text}], c: {{d: {text}}}, e: '{text}'}}"
    config = load_text(
        tmp_path,
        f"model: {{name: 'm:f', width: {text}}}\noptimizer: {{lr: {text}}}\n"
        f"data: {{dataset: 'm:f', dataset_args: {own}}}\n"
        f"validation: {{dataset: 'm:f', dataset_args: {own}, every_steps: 1}}\n",
    )
    expected = {"a": number, "b": [number], "c": {"d": number}, "e": text}
    assert config.optimizer.lr == number
    assert config.model.factory_arguments() == {"width": number}
    assert config.data.dataset_args == config.validation.dataset_args == expected
    assert type(config.data.dataset_args["a"]) is type(number)
    assert load_text(tmp_path, config.to_yaml()) == config
    changed = config.override(dict([parse_assignment(f"data.dataset_args.a={text}")]))
    assert changed == config


WORDS = ["0100", "08", "1:30", "190:20:30", "1:30.5", "1__0", "1_", "None", "yes", "off"]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("key", ["max_steps", "data.dataset_args.a", "logging.file", "model.b"])
def test_what_readers_take_for_different_things_is_refused(
    tmp_path: Path, key: str, word: str
) -> None:
    given = json.dumps(nested(key, "WORD"))
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, given.replace('"WORD"', word))
    assert f"column {given.index('WORD')}: {word} " in str(caught.value)
    assert f"or '{word}' in quotes if it is text" in str(caught.value)
    with pytest.raises(ConfigError, match=f"the value is not YAML: {word} "):
        parse_assignment(f"{key}={word}")


@pytest.mark.parametrize("word", [*WORDS, "1e5", ".5", "~", "null", "true", "nan", "", "=", "<<"])
def test_text_that_looks_like_something_else_stays_text(tmp_path: Path, word: str) -> None:
    config = SpeedtronicConfig.from_dict({"data": {"dataset_args": {"a": word}, "dataset": "m:f"}})
    assert load_text(tmp_path, config.to_yaml()) == config
    assert load_text(tmp_path, f"data: {{dataset: 'm:f', dataset_args: {{a: '{word}'}}}}") == config


@pytest.mark.parametrize("word", ["0o100", "0x40", "0b1000000", "64", "6_4"])
def test_whole_numbers_of_which_there_is_one_reading(tmp_path: Path, word: str) -> None:
    assert load_text(tmp_path, f"max_steps: {word}").run.max_steps == 64


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{1: a}", "key 1 is no text; write it in quotes"),
        ("{1.5: a}", "key 1.5 is no text"),
        ("{null: a}", "key null is no text"),
        ("{[a]: b}", "a key must be text"),
        ("{n:2}", "'n:2' has no space after its colon"),
        ("{a: {b: 1, b: 2}}", "column 49: key 'b' is given twice"),
        ("{a: !!binary aGk=}", "could not determine a constructor for the tag"),
        ("{a: !!timestamp 2024-01-01}", "could not determine a constructor for the tag"),
        ("{a: !!bool maybe}", "'maybe' is no bool"),
        ("{a: .inf}", "data.dataset_args is {'a': inf}; it must hold finite numbers, not inf"),
        ("{a: [nan]}", "it must hold finite numbers, not nan"),
        ("{a: 1e400}", "it must hold finite numbers, not inf"),
        ("{a: " + "9" * 5000 + "}", "a number of 5000 digits"),
    ],
)
def test_what_a_mapping_of_one_s_own_may_not_hold(tmp_path: Path, args: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"data: {{dataset: 'm:f', dataset_args: {args}}}")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_commas_in_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1, column 12: 1,000 has commas; write 1000"):
        load_text(tmp_path, "max_steps: 1,000")


def test_words_are_text_where_they_are_keys(tmp_path: Path) -> None:
    text = "data: {dataset: 'm:f', dataset_args: {on: 1, no: 2, None: 3}}"
    assert load_text(tmp_path, text).data.dataset_args == {"on": 1, "no": 2, "None": 3}


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_json_numbers_are_finite(tmp_path: Path, constant: str) -> None:
    text = f'{{"data": {{"dataset": "m:f", "dataset_args": {{"a": {constant}}}}}}}'
    with pytest.raises(ConfigError, match=r"data\.dataset_args is .* must hold finite numbers"):
        load_text(tmp_path, text, "c.json")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: 2}, "it must have text for keys, not 1"),
        (b"x", "not of a bytes"),
        ({"a"}, "not of a set"),
        (float("inf"), "finite numbers"),
        (json.loads("[" * 90 + "]" * 90), "nested at most 60 levels deep"),
    ],
)
def test_a_dict_of_python_s_is_held_to_the_same(value: Any, expected: str) -> None:
    assert expected in refusal({"data": {"dataset": "m:f", "dataset_args": {"a": value}}})
    assert expected in refusal({"model": {"name": "m:f", "a": value}})


def test_tuples_and_paths_become_what_a_file_would_hold() -> None:
    given = {"dataset": "m:f", "dataset_args": {"a": (1, Path("b")), "c": Path("d")}}
    expected = {"a": [1, "b"], "c": "d"}
    assert SpeedtronicConfig.from_dict({"data": given}).data.dataset_args == expected


@pytest.mark.parametrize(
    "text", [BOMB, BOMB.replace("a", "run: {a", 1), "a: " + "[" * 61, "- 1\n" * 100_001]
)
def test_a_file_that_would_grow_is_refused_before_it_does(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_aliases_and_merges_in_moderation(tmp_path: Path) -> None:
    text = "data: {dataset: 'm:f', dataset_args: {a: &a {b: [1]}, c: *a, d: {<<: *a, e: 2}}}"
    made = load_text(tmp_path, text)
    assert made.data.dataset_args == {"a": {"b": [1]}, "c": {"b": [1]}, "d": {"b": [1], "e": 2}}
    assert "&" not in made.to_yaml() and load_text(tmp_path, made.to_yaml()) == made


@pytest.mark.parametrize("key", ["run.output_dir", "logging.file", "checkpoint.directory"])
@pytest.mark.parametrize("word", ["None", "none"])
def test_no_file_is_named_like_python_s_null(key: str, word: str) -> None:
    assert f"{key} is {word!r}; it must be a path; null" in refusal(nested(key, word))


def test_a_count_fits_into_64_bits() -> None:
    assert refusal({"max_steps": 2**63}).endswith("it must be less than 2^63")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing.yaml", "missing.yaml: no such file"),
        (".", ": is a directory"),
        ("file/below", "file/below: cannot be read: Not a directory"),
        ("a\0b", "cannot be read: "),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, path: str, expected: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        SpeedtronicConfig.load(f"{tmp_path}/{path}")
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_remote_file_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match=r"^s3://\*\*\*@host/c.yaml: is not on this machine"):
        SpeedtronicConfig.load("s3://me:hunter2@host/c.yaml")


def test_every_bad_line_of_a_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "seed: x\nmax_steps: 0\nmodel: {d_model: 100, n_kv_head: 3}\n")
    lines = str(caught.value).split("\n")
    assert len(lines) == 4
    assert all(line.startswith(f"{tmp_path}/c.yaml: ") for line in lines)


def test_no_library_error_hides_behind_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as values:
        SpeedtronicConfig.from_dict({"seed": "x"})
    with pytest.raises(ConfigError) as syntax:
        load_text(tmp_path, "a: [")
    for caught in (values.value, syntax.value):
        assert caught.__cause__ is None and caught.__suppress_context__


# --- round trip, override, target, assignment ---


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"seed": 5, "data": {"text_path": ["a", "*"]}, "optimizer": {"betas": [0, 0.5]}},
        {"name": "1e5", "checkpoint": {"keep_last": None}, "logging": {"json_file": None}},
        {"output_dir": "ä: #b", "optimizer": {"lr": 1e-30, "grad_clip": 1}},
    ],
)
def test_round_trip(given: dict[str, Any], tmp_path: Path) -> None:
    config = SpeedtronicConfig.from_dict(given)
    assert SpeedtronicConfig.from_dict(config.to_dict()) == config
    assert load_text(tmp_path, config.to_yaml()) == config
    assert load_text(tmp_path, json.dumps(config.to_dict()), "c.json") == config


def test_override_leaves_the_original_alone() -> None:
    given = {"run": {"seed": 5}}
    config = SpeedtronicConfig.from_dict(given)
    changed = config.override({"run.max_steps": 4, "seed": 6, "data.text_path": ["a"]})
    assert (changed.run.max_steps, changed.run.seed, changed.data.text_path) == (4, 6, ("a",))
    assert (config.run.seed, config.data.text_path, given) == (5, None, {"run": {"seed": 5}})
    assert config.override({}) == config


def test_overrides_add_up_and_null_restores_the_default() -> None:
    config = SpeedtronicConfig.from_dict({"model": {"d_ff": 10}}).override({"seed": 5})
    changed = config.override({"model.d_ff": None, "model.d_model": 64})
    assert (changed.model.d_ff, changed.data.seed) == (256, 5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"run.max_steps": "ten"}, "run.max_steps is 'ten'; it must be a valid integer"),
        ({"max_steps": 0}, "run.max_steps is 0; it must be greater than or equal to 1"),
        ({"run.max_stps": 4}, "run.max_stps: unknown key; did you mean 'max_steps'?"),
        ({"zzz.max_steps": 4}, "zzz: unknown key; allowed are run, model"),
        ({"lr": 1}, "lr: unknown key; did you mean 'optimizer.lr'?"),
        ({"run.a.b": 1}, "run.a.b: unknown key; allowed are name"),
        ({"run": 3, "run.seed": 4}, "run is a whole section; change one key of it"),
        ({"seed": 1, "run.seed": 2}, "run.seed is given twice, as 1 and as 2"),
        ({"chunk.steps": 150}, "chunk.steps is 150; it must be a multiple of checkpoint.every_"),
    ],
)
def test_bad_overrides(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeedtronicConfig.from_dict({}).override(changes)
    assert str(caught.value).startswith(expected)


OWN = {
    "model": {"name": "m:f", "sizes": {"a": {"b": 1}}},
    "data": {"dataset": "m:f", "dataset_args": {"n": 1, "list": [1, 2]}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.dataset_args.n=2", {"n": 2, "list": [1, 2]}),
        ("data.dataset_args.new={a: 1}", {"n": 1, "list": [1, 2], "new": {"a": 1}}),
        ("data.dataset_args.x.y.z=1e-4", {"n": 1, "list": [1, 2], "x": {"y": {"z": 1e-4}}}),
        ("data.dataset_args.list=[3]", {"n": 1, "list": [3]}),
        ("data.dataset_args.n=", {"n": None, "list": [1, 2]}),
        ("data.dataset_args={m: 3}", {"m": 3}),
        ("validation.dataset_args.n=2", {"n": 2}),
        ("model.sizes.a.b=2", {"sizes": {"a": {"b": 2}}}),
        ("model.sizes.c.d=2", {"sizes": {"a": {"b": 1}, "c": {"d": 2}}}),
        ("model.width=2", {"sizes": {"a": {"b": 1}}, "width": 2}),
    ],
)
def test_an_assignment_reaches_into_a_mapping_of_one_s_own(text: str, expected: Any) -> None:
    key, value = parse_assignment(text)
    base = SpeedtronicConfig.from_dict(OWN)
    changed = base.override({key: value})
    section = getattr(changed, key.partition(".")[0])
    assert (
        section.factory_arguments() if section is changed.model else section.dataset_args
    ) == expected
    assert base == SpeedtronicConfig.from_dict(OWN)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data.dataset_args.n.m": 1}, "data.dataset_args.n is a value, not a ma"),
        (
            {"data.dataset_args.list.0": 1},
            "data.dataset_args.list.0: data.dataset_args.list is a l",
        ),
        ({"data.dataset_arg.n": 1}, "data.dataset_arg.n: unknown key"),
        ({"model.sizes.a.b.c": 1}, "model.sizes.a.b.c: model.sizes.a.b is a value, not a mapping"),
        ({"data.dataset_args": 3}, "data.dataset_args is 3; it must be a valid dictionary"),
        ({"data.dataset_args.n": float("nan")}, "it must hold finite numbers"),
    ],
)
def test_an_assignment_that_reaches_nowhere(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SpeedtronicConfig.from_dict(OWN).override(changes)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["max_steps", "run.max_steps"])
def test_take_target_returns_the_target_and_keeps_the_horizon(key: str) -> None:
    config, target = split_target(SpeedtronicConfig.from_dict({}), {key: 4, "seed": 5})
    assert (target, config.run.max_steps, config.data.seed) == (4, 1000, 5)


def test_take_target_without_a_target() -> None:
    config, target = split_target(SpeedtronicConfig.from_dict({}), {"seed": 5})
    assert (target, config.run.seed) == (None, 5)


@pytest.mark.parametrize("value", [0, "ten", 1.5, True, None])
def test_take_target_checks_the_target(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^run.max_steps is .*; it must be"):
        split_target(SpeedtronicConfig.from_dict({}), {"max_steps": value})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("run.max_steps=4", "run.max_steps", 4),
        ("optimizer.lr = 1.5", "optimizer.lr", 1.5),
        ("data.shuffle=true", "data.shuffle", True),
        ("optimizer.betas=[0.9, 0.99]", "optimizer.betas", [0.9, 0.99]),
        ("run.name=a=b", "run.name", "a=b"),
        ("run.name='4'", "run.name", "4"),
        ("run.name=2026-01-31", "run.name", "2026-01-31"),
        ("checkpoint.keep_last=null", "checkpoint.keep_last", None),
        ("checkpoint.keep_last=", "checkpoint.keep_last", None),
        ("data.text_path={stdlib}/**/*.py", "data.text_path", "{stdlib}/**/*.py"),
        ("data.text_path=*.py", "data.text_path", "*.py"),
    ],
)
def test_parse_assignment(text: str, key: str, value: object) -> None:
    assert parse_assignment(text) == (key, value)


def test_an_assigned_exponent_is_a_number() -> None:
    key, value = parse_assignment("optimizer.lr=1e-3")
    assert SpeedtronicConfig.from_dict({}).override({key: value}).optimizer.lr == 1e-3


@pytest.mark.parametrize(
    "text", ["run.seed", "", "=4", "a=[1,", "a=b: c", "a='", "a=" + "[" * 9999]
)
def test_a_malformed_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text)
    message = str(caught.value)
    assert "expected key=value, for example optimizer.lr=1e-3" in message and "\n" not in message


# --- fingerprint, paths, secrets, imports ---

BASE: dict[str, Any] = {
    "data": {"num_workers": 1, "text_path": ["a"]},
    "model": {"vocab_size": 300},
    "checkpoint": {"every_steps": 10},
}
MOVES: dict[str, Any] = {
    "run.seed": 5,
    "model.name": "other",
    "model.vocab_size": 301,
    "model.max_seq_len": 256,
    "model.n_layer": 5,
    "model.n_head": 4,
    "model.n_kv_head": 2,
    "model.d_model": 128,
    "model.d_ff": 7,
    "model.dropout": 0.1,
    "model.tie_weights": False,
    "model.rope_base": 1.0,
    "data.text_path": ["b"],
    "data.num_tokens": 9,
    "data.block_size": 9,
    "data.target_batch_size": 2,
    "data.shuffle": True,
    "data.drop_last": False,
    "data.seed": 5,
    "data.tokenizer": "a:b",
    "data.dataset_args": {"a": 1},
    "optimizer.name": "muon",
    "optimizer.lr": 1.0,
    "optimizer.betas": [0.8, 0.9],
    "optimizer.eps": 1.0,
    "optimizer.weight_decay": 1.0,
    "optimizer.grad_clip": 1.0,
    "scheduler.name": "constant",
    "scheduler.warmup_steps": 1,
    "scheduler.max_steps": 1,
    "scheduler.min_lr_ratio": 1.0,
    "precision.mode": "fp32",
}
STAYS: dict[str, Any] = {
    "run.name": "b",
    "run.device": "cpu",
    "run.max_steps": 2,
    "run.output_dir": "b",
    "data.num_workers": 2,
    "data.prefetch_factor": 2,
    "data.pin_memory": True,
    "optimizer.fused": True,
    "checkpoint.enabled": False,
    "checkpoint.directory": "b",
    "checkpoint.every_steps": 5,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_every": 10,
    "checkpoint.async_save": False,
    "checkpoint.resume": True,
    "checkpoint.save_on_stop": True,
    "chunk.steps": 20,
    "chunk.retries": 1,
    "chunk.quarantine_after": 1,
    "chunk.retry_delay_s": 2.0,
    "chunk.hang_timeout_s": 2.0,
    "chunk.standby": False,
    "logging.level": "ERROR",
    "logging.file": "b",
    "logging.json_file": None,
    "logging.every_steps": 2,
    "logging.hooks": ["tensorboard"],
    "validation.dataset_args": {"a": 1},
    "validation.max_batches": 3,
    "compile": True,
    "gradient_checkpointing": True,
}
# Cannot change alone: they need another key to change with them.
BOUND = {
    "data.encoding_errors",  # the data's fingerprint has it, by the tokens
    "data.synthetic",
    "data.dataset",
    "data.micro_batch_size",
    "validation.every_steps",
    "validation.text_path",
    "validation.dataset",
    "checkpoint.keep_best",
}


@pytest.mark.parametrize("key", [*MOVES, *STAYS])
def test_the_fingerprint_moves_with_the_trajectory_only(key: str) -> None:
    base = SpeedtronicConfig.from_dict(BASE)
    changed = base.override({key: (MOVES | STAYS)[key]})
    assert changed != base
    assert (changed.fingerprint() != base.fingerprint()) == (key in MOVES)


def test_the_fingerprint_ignores_the_micro_batch() -> None:
    base = SpeedtronicConfig.from_dict({"data": {"target_batch_size": 4}})
    micro = base.override({"data.micro_batch_size": 2})
    assert micro != base and micro.fingerprint() == base.fingerprint()


def test_every_key_is_known_to_the_fingerprint_tests() -> None:
    keys = {f"{section}.{key}" for section, values in DEFAULTS.items() for key in values}
    assert keys | set(FLAGS) == {*MOVES, *STAYS, *BOUND}


def test_the_fingerprint_is_of_values_and_not_of_how_they_were_given() -> None:
    plain = SpeedtronicConfig.from_dict({})
    assert plain.fingerprint() == SpeedtronicConfig.from_dict(plain.to_dict()).fingerprint()
    # Written into manifests: if this changes, runs from before no longer match theirs.
    assert plain.fingerprint() == "xxh3_128:375a17d849326a42eec5787529ee7af1"


@pytest.mark.parametrize(
    ("output_dir", "directory", "expected"),
    [
        ("runs/a", "checkpoints", "runs/a/checkpoints"),
        ("runs/a/", "c/d", "runs/a/c/d"),
        ("runs/a", "/abs", "/abs"),
        ("runs/a", "file:///abs", "file:///abs"),
        ("runs/a", "s3://bucket/c", "s3://bucket/c"),
        ("file:///a/b", "c", "file:///a/b/c"),
        ("file:///a/b", "/abs", "/abs"),
        (".", "c", "./c"),
        ("/", "c", "/c"),
    ],
)
def test_checkpoint_dir(output_dir: str, directory: str, expected: str) -> None:
    given = {"output_dir": output_dir, "checkpoint": {"directory": directory}}
    config = SpeedtronicConfig.from_dict(given)
    assert config.checkpoint_dir == config.under_output_dir(directory) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"run": {"output_dir": "$HOME/runs"}}, "must name a variable as ${HOME}, with braces"),
        ({"logging": {"file": "a/$USER.log"}}, "must name a variable as ${USER}, with braces"),
        ({"data": {"text_path": ["a", "$X/b"]}}, "must name a variable as ${X}, with braces"),
        ({"run": {"output_dir": "${HOME"}}, "must name a variable as ${NAME}"),
        ({"run": {"output_dir": "${A:-b}"}}, "must name a variable as ${NAME}"),
        ({"model": {"name": "m:f", "a": {"b": "$HOME/x"}}}, "as ${HOME}, with braces"),
        ({"data": {"dataset": "m:f", "dataset_args": {"a": ["$HOME"]}}}, "as ${HOME}, with br"),
    ],
)
def test_a_variable_has_braces(given: dict[str, Any], expected: str) -> None:
    message = refusal(given)
    assert expected in message and "\n" not in message


def test_a_variable_in_a_path_is_put_in_where_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", f"{tmp_path}/a")
    monkeypatch.setenv("HOME", str(tmp_path))
    config = SpeedtronicConfig.from_dict(
        {"output_dir": "${PLACE}/run", "checkpoint": {"directory": "${PLACE}/ck"}}
    )
    assert config.checkpoint_dir == f"{tmp_path}/a/ck"
    assert config.under_output_dir("x") == f"{tmp_path}/a/run/x"
    assert config.under_output_dir("~/x") == f"{tmp_path}/x"
    assert config.to_dict(redact_secrets=True)["run"]["output_dir"] == "${PLACE}/run"
    monkeypatch.delenv("PLACE")
    with pytest.raises(ConfigError, match="the environment variable PLACE is not set"):
        _ = config.checkpoint_dir


def test_a_config_is_redacted_on_request_only() -> None:
    url = "s3://me:hunter2@host/a"
    config = SpeedtronicConfig.from_dict({"output_dir": url, "data": {"text_path": [url]}})
    assert config.to_dict()["run"]["output_dir"] == url and url in config.to_yaml()
    clean = config.to_dict(redact_secrets=True)
    assert clean["run"]["output_dir"] == "s3://***@host/a"
    assert clean["data"]["text_path"] == ["s3://***@host/a"]
    assert clean["data"]["num_tokens"] is None and clean["run"]["name"] == "speedtronic"
    assert "hunter2" not in config.to_yaml(redact_secrets=True)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": {"lr": {"password": "hunter2-0"}}},
        {"run": {"api_key": "hunter2-0"}},
        {"model": {"name": "m:f", "api_key": b"hunter2-0"}},
        {"data": {"dataset": "m:f", "dataset_args": {"token": {1: "hunter2-0"}}}},
        {"run": ["--token", "hunter2-0"]},
    ],
)
def test_a_refusal_shows_no_secret(given: dict[str, Any]) -> None:
    assert "hunter2" not in refusal(given)
    with pytest.raises(ConfigError) as caught:
        SpeedtronicConfig().override({"run.token": "hunter2-0", "run.a": 1})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_assignment("data.dataset_args.password=[hunter2-0")
    assert "hunter2" not in str(caught.value)


def test_a_message_shows_no_password_and_stays_short() -> None:
    message = refusal({"device": "s3://me:" + "hunter2" * 50 + "@" + "host" * 50})
    assert "hunter2" not in message and "s3://***@host" in message and len(message) < 250


def test_configuration_loads_none_of_the_heavy_libraries() -> None:
    code = (
        "import sys, speedtronic.config as c; c.SpeedtronicConfig.from_dict({}).fingerprint();"
        "print(sorted({'torch', 'numpy', 'prefect', 'fsspec'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- the recipes ---


@pytest.mark.parametrize(
    ("name", "synthetic", "every_steps", "chunk_steps"),
    [("smoke", True, 2, 2), ("stdlib", False, 20, 40)],
)
def test_the_recipes_load(name: str, synthetic: bool, every_steps: int, chunk_steps: int) -> None:
    config = SpeedtronicConfig.load(CONFIGS / f"{name}.yaml")
    found = (config.run.name, config.data.synthetic, config.checkpoint.every_steps)
    assert (*found, config.chunk.steps) == (name, synthetic, every_steps, chunk_steps)
