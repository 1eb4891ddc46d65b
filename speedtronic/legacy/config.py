"""Translates a configuration of Speedtronic 2.0 into one of today that means the same.

What 2.0 took and nothing here acts on is left out and named; its defaults are written out where
they differ from today's and change a run. Any other key stays as it is, for today's rules to judge.
"""

import os
from collections.abc import Mapping
from typing import Any

from speedtronic.config.config import SpeedtronicConfig
from speedtronic.config.overrides import SHORTCUTS
from speedtronic.config.parsing import parse_file
from speedtronic.config.sections import REFERENCE_MODEL
from speedtronic.errors import ConfigError
from speedtronic.redaction import format_value

IGNORED_SECTIONS = ("shape_validation", "distributed", "hub", "diloco")
"""Whole sections of 2.0 that nothing here acts on."""

IGNORED_KEYS = {
    "": ("ooo_backprop", "ooo_streams", "muon_plus", "cautious"),
    "data": ("vocab_size",),  # model.vocab_size was what counted
    "optimizer": ("muon_plus", "cautious", "muon_momentum", "muon_ns_steps", "muon_norm_eps"),
}
"""Keys of 2.0 that nothing here acts on, by section; "" is the top level."""

GONE = (*IGNORED_SECTIONS, *IGNORED_KEYS[""], "run.log_every", "precision.dtype")
"""Keys by which a file of 2.0 can be told from one of today's."""

SECTIONS = (
    "run",
    "model",
    "data",
    "optimizer",
    "scheduler",
    "precision",
    "checkpoint",
    "logging",
)

DEFAULT_MAX_STEPS = 1000
DEFAULT_CHECKPOINT = {"every_steps": 500, "save_on_stop": True}

Values = dict[str, Any]


def load(path: str | os.PathLike[str]) -> tuple[SpeedtronicConfig, list[str]]:
    """Read a YAML or JSON file of 2.0.

    Returns:
        The configuration, and the keys in the file that have no effect any more.

    Raises:
        ConfigError: as `SpeedtronicConfig.load`, or a value that has no counterpart today.
    """
    source = os.fspath(path)
    given = parse_file(source)
    try:
        if not isinstance(given, Mapping | None):
            raise ConfigError("the top level must be a mapping of keys to values")
        values, ignored = translate(given or {})
        return SpeedtronicConfig.from_dict(values), ignored
    except ConfigError as error:
        lines = [f"{source}: {line}" for line in str(error).split("\n")]
        raise ConfigError("\n".join(lines)) from None


def translate(old: Mapping[str, Any]) -> tuple[Values, list[str]]:
    """Return today's values for those of a 2.0 file, and the keys left out.

    Raises:
        ConfigError: a section is no mapping, or the data set is a pickled file.
    """
    values = dict(old)
    _write_out_short_forms(values)
    sections = {name: _section(values, name) for name in SECTIONS}
    ignored = _take_ignored(values)
    _translate_steps(sections)
    ignored += _translate_names(values, sections)
    ignored += _translate_data(sections["data"], sections["model"])
    values["checkpoint"] = {**DEFAULT_CHECKPOINT, **sections["checkpoint"]}
    return values, ignored


def _section(values: Values, name: str) -> Values:
    """Replace a section by a copy and return it; null and a missing one become empty."""
    given = values.get(name)
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"{name} is {format_value(given)}; it must be a mapping of keys to values"
        )
    values[name] = dict(given or {})
    return values[name]  # type: ignore[no-any-return]


def _write_out_short_forms(values: Values) -> None:
    """Expand short forms: a name for a section, and keys of `run` at the top, which take
    precedence."""
    for section, key in (("optimizer", "name"), ("precision", "mode")):
        if isinstance(values.get(section), str):
            values[section] = {key: values[section]}
    run = _section(values, "run")
    for key in (*SHORTCUTS, "log_every"):
        if key in values:
            run[key] = values.pop(key)
    flag = values.get("compile")
    if isinstance(flag, Mapping):
        values["compile"] = flag.get("enabled", False)


def _take_ignored(values: Values) -> list[str]:
    ignored = []
    for name in IGNORED_SECTIONS:
        if name in values:
            given = values.pop(name)
            dotted = [f"{name}.{key}" for key in given] if isinstance(given, Mapping) else []
            ignored += dotted or [name]
    for name, keys in IGNORED_KEYS.items():
        section = values[name] if name else values
        present = [key for key in keys if key in section]
        ignored += [f"{name}.{key}" if name else key for key in present]
        for key in present:
            del section[key]
    return ignored


def _translate_steps(sections: Mapping[str, Values]) -> None:
    """Translate targets, the schedule's end and the logging cadence, by the rules of 2.0."""
    run, data, scheduler = sections["run"], sections["data"], sections["scheduler"]
    target = run.get("max_steps", DEFAULT_MAX_STEPS)
    horizon = scheduler.get("max_steps", DEFAULT_MAX_STEPS)
    if horizon == DEFAULT_MAX_STEPS:  # 2.0 could not tell a given 1000 from its default
        horizon = target
    if (data_target := data.pop("max_steps", None)) is not None:
        if horizon == DEFAULT_MAX_STEPS:
            horizon = data_target
        target = data_target
    run["max_steps"], scheduler["max_steps"] = target, horizon
    log_every, logging = run.pop("log_every", None), sections["logging"]
    if logging.get("every_steps", 1) == 1:
        logging["every_steps"] = 1 if log_every is None else log_every


def _translate_names(values: Values, sections: Mapping[str, Values]) -> list[str]:
    model, precision = sections["model"], sections["precision"]
    if model.get("name") == "gpt":
        model["name"] = REFERENCE_MODEL
    if model.pop("gradient_checkpointing", False):  # either key switched it on
        values["gradient_checkpointing"] = True
    ignored = []
    if dtype := precision.pop("dtype", None):
        if str(precision.get("mode", "auto")).lower() == "auto":
            precision["mode"] = dtype
        else:
            ignored.append("precision.dtype")
    for section, key in (("optimizer", "name"), ("scheduler", "name"), ("precision", "mode")):
        if isinstance(name := sections[section].get(key), str):
            sections[section][key] = name.strip().lower()
    return ignored


def _translate_data(data: Values, model: Values) -> list[str]:
    """Keep the one data source that 2.0 used: text before a data set before synthetic tokens."""
    ignored = []
    if data.get("text_path") is not None:
        without_effect = ["dataset", "synthetic", "num_tokens"]
    elif data.get("dataset") is not None:
        if ":" not in str(data["dataset"]):
            raise ConfigError(
                f"data.dataset is {format_value(data['dataset'])}, a pickled data set, which is "
                "not read any more; name a factory, package.module:factory, that returns it"
            )
        without_effect = ["synthetic", "num_tokens"]
    else:
        without_effect = []
        num_samples = data.get("num_tokens")  # which is what 2.0 took it for
        block_size = data.get("block_size") or model.get("max_seq_len", 128)
        if isinstance(num_samples, int) and isinstance(block_size, int):
            data["num_tokens"] = num_samples * block_size + 1
    if not data.get("num_workers"):
        without_effect.append("prefetch_factor")
    for key in without_effect:
        if data.pop(key, None) is not None:
            ignored.append(f"data.{key}")
    return ignored
