"""Parses configuration files and `key=value` assignments to plain values."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from speedtronic.config.yaml_text import parse_yaml
from speedtronic.errors import ConfigError
from speedtronic.redaction import format_value, redact

MAX_BYTES = 2**20
"""Size of the largest file that is read as a configuration."""


def parse_file(source: str) -> object:
    """Parse a YAML file, or a JSON file (suffix `.json`), at a local path or file:// URL.

    Raises:
        ConfigError: one line that names the file and, for bad syntax, line and column.
    """
    return parse_text(_read(source), source)


def parse_text(text: str, source: str) -> object:
    """Parse the content of the file `source`; raises as `parse_file`."""
    try:
        if source.lower().endswith(".json"):
            parsed = json.loads(text)
            _refuse_duplicates(text)
            return parsed
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: {_locate(error, text)}") from None


def parse_assignment(text: str) -> tuple[str, object]:
    """Parse `key=value` of the command line, where the value is YAML on one line."""
    key, equals, value = (part.strip() for part in text.partition("="))
    example = "expected key=value, for example optimizer.lr=1e-3 or optimizer.betas=[0.9, 0.99]"
    if not key or not equals:
        raise ConfigError(f"{format_value(text)}: {example}")
    if value.startswith(("{stdlib}", "*")):  # a path, which YAML would take for syntax of its own
        return key, value
    try:
        parsed = parse_yaml(value)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(
            f"{format_value(text)}: the value is not YAML: {error.problem}; {example}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{format_value(text)}: the value is not YAML; {example}") from None
    if isinstance(parsed, Mapping) and not value.startswith("{"):
        raise ConfigError(f"{format_value(text)}: the value is a mapping; {example}")
    return key, parsed


def is_written_by_run(source: str) -> bool:
    """Whether a file is the config.yaml that a run wrote to its output directory."""
    path = Path(source.removeprefix("file://"))
    beside = (path.with_name(name) for name in ("run.json", "metrics.jsonl", ".lock"))
    return path.name == "config.yaml" and any(map(os.path.lexists, beside))


def _read(source: str) -> str:
    path = source.removeprefix("file://")  # taken literally, as everywhere: `%20` is no space
    if "://" in path:
        raise ConfigError(f"{redact(source)}: is not on this machine; copy it to a local file")
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
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
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{source}: is larger than {MAX_BYTES} bytes: no configuration")
    return text


def _refuse_duplicates(text: str) -> None:
    """Refuse valid JSON in which an object has the same key twice."""
    open_objects: list[set[str] | None] = []  # None for a list
    for found in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]', text):
        token, is_key = found.group(1) or found.group(), found.group(2)
        if token in ("{", "["):
            open_objects.append(set() if token == "{" else None)
        elif token in ("}", "]"):
            open_objects.pop()
        elif is_key and (keys := open_objects[-1]) is not None:
            key = json.loads(token)
            if key in keys:
                raise json.JSONDecodeError(f"key {key!r} is given twice", text, found.start())
            keys.add(key)


def _locate(error: Exception, text: str) -> str:
    """Describe a parser's error in one line, with line and column if known."""
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
