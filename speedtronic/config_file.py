"""Reading a file, or `key=value`: it becomes plain values, or one line says why not."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from speedtronic.errors import ConfigError
from speedtronic.redaction import redact, show


def parse_file(source: str) -> object:
    """Parse the YAML file, or by its suffix the JSON one, at a local path or file:// URL.

    Raises:
        ConfigError: one line with the file and, for bad syntax, the line and column.
    """
    text = _read(source)
    try:
        if source.lower().endswith(".json"):
            return json.loads(text, object_pairs_hook=_unique)
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: {_locate(error, text)}") from None


def parse_yaml(text: str) -> object:
    """Parse one YAML document; raises yaml.YAMLError, ValueError or RecursionError."""
    return yaml.load(text, _Loader)


def parse_assignment(text: str) -> tuple[str, object]:
    """Split the command line's `key=value`; the value is a scalar or a list as YAML writes it."""
    key, equals, value = (part.strip() for part in text.partition("="))
    example = "expected key=value, for example optimizer.lr=1e-3 or optimizer.betas=[0.9, 0.99]"
    if not key or not equals:
        raise ConfigError(f"{show(text)}: {example}")
    if value.startswith(("{", "*")):  # `{stdlib}/a.py` and `*.py`: never a scalar or list of YAML's
        return key, value
    try:
        parsed = parse_yaml(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{show(text)}: the value is not YAML; {example}") from None
    if isinstance(parsed, Mapping):
        raise ConfigError(f"{show(text)}: the value is a mapping; {example}")
    return key, parsed


def _read(source: str) -> str:
    path = source.removeprefix("file://")  # taken literally, as everywhere: `%20` is no space
    if "://" in path:
        raise ConfigError(f"{redact(source)}: is not on this machine; copy it to a local file")
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{source}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{source}: is a directory; name a YAML or JSON file in it") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: byte {error.start} is not UTF-8 text") from None
    except ValueError as error:  # a NUL character in the path
        raise ConfigError(f"{source!r}: cannot be read: {error}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but a key given twice is refused and a date stays text."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        # Not while constructing: by then the keys that `<<` brings in are in the node too.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return node


# Without its dates, so that `name: 2026-01-31` is a name.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"key {twice[0]!r} is given twice")
    return dict(pairs)


def _locate(error: Exception, text: str) -> str:
    """Say in one line what is wrong and, where the parser knows it, in which place."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        column = len(before) - before.rfind("\n")
        return f"line {before.count(chr(10)) + 1}, column {column}: {error.reason}"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno}: {error.msg}"
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return str(error).split("\n")[0]
