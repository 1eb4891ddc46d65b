"""Generates the JSON schema and docs/configuration.md from the configuration classes.

speedtronic schema                                      the JSON schema, draft 2020-12
python -m speedtronic.config.json_schema > docs/configuration.md    the page
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from speedtronic.config.config import SpeedtronicConfig
from speedtronic.config.overrides import FLAGS, SHORTCUTS

Node = dict[str, Any]
"""A JSON schema or a part of one."""

# pydantic keeps its own names for the bounds of a number that may be given as text.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

_WORDS = {
    "boolean": "true or false",
    "integer": "integer",
    "number": "number",
    "string": "text",
    "object": "mapping",
    "null": "null",
}

_INTRODUCTION = """\
# Configuration

A YAML file, a JSON file (by its suffix `.json`) or a dict. Every key has a default, so a file says
only what differs:

```yaml
name: shakespeare            # short for run.name
max_steps: 2000

data:
  text_path: corpus/*.txt
  micro_batch_size: 8
  target_batch_size: 32

optimizer:
  lr: 1e-3

checkpoint:
  every_steps: 50
```

- `speedtronic validate --config FILE` checks a file and prints it with every default worked out.
- `--set section.key=value`, once or more, changes a key for one call; in Python,
  `config.override({"section.key": value})` returns a changed copy.
- An unknown key is refused, and the nearest known one is named. So is a value of the wrong type:
  `"4"` is not an integer.
- `1e-4`, `1_000`, `.5` and `0x1F` are numbers, in the mappings of your own (`data.dataset_args`,
  keys of your model) as in all other keys. What YAML's readers disagree on is refused, with line
  and column: `0100` (octal to some), `1:30` (base 60), `1,000`, `yes` and `no`, `None`. In quotes
  each of them is text.
- Mappings of your own hold what JSON does: text, finite numbers, true, false, null, lists, and
  mappings with text for keys. `--set data.dataset_args.n=2` reaches into them and adds keys; a list
  is given as a whole.
- A key given twice is refused, and so is a file of over a megabyte, of more than 100,000 values
  with its aliases written out, or nested deeper than 60 levels.
- A default of `null` is worked out as the description says; to give null is to leave the key out.
- `${NAME}` stands for an environment variable, in paths and in mappings of your own; the reference
  is what is stored. What counts as a secret, and is blanked, is in [secrets](secrets.md).
- Paths are taken from the working directory, but relative ones in `checkpoint` and `logging` from
  `run.output_dir`.
- `speedtronic schema > speedtronic.schema.json` writes a JSON schema. Editors with the YAML
  language server then complete keys, explain them and mark mistakes in a file that begins with
  `# yaml-language-server: $schema=speedtronic.schema.json`.

This page is written by `python -m speedtronic.config.json_schema > docs/configuration.md`, out of
[speedtronic/config/sections.py](../speedtronic/config/sections.py).
"""

_NOTES = {
    "data": "One update takes `target_batch_size` samples, in micro batches; smaller ones need "
    "less memory and repeat the same samples. One of `text_path`, `dataset` and `synthetic` says "
    "where samples come from.",
    "validation": "Give `every_steps` together with `text_path` or `dataset`, or none of them.",
    "scheduler": "The horizon is settled when a run starts: `max_steps` here or, if that is null, "
    "the target or `run.max_steps`, whichever is later. From then on only `--max-steps` on the "
    "command line moves it; a resume with a later target warns of the steps at the floor.",
    "checkpoint": "What a machine's death costs is at most `every_steps` updates.",
    "chunk": "For the Prefect flow, which trains each chunk in a process of its own.",
    "logging": "For `hooks`, see [hooks](hooks.md).",
}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # "Hang Timeout S" says nothing that the key does not


def json_schema() -> Node:
    """Return the JSON schema, draft 2020-12, of a configuration file.

    It accepts what `SpeedtronicConfig.load` accepts, and more, since it has no rules between keys.
    """
    schema = _models()
    run = schema["$defs"]["RunConfig"]["properties"]
    shortcuts = {
        key: {**run[key], "description": f"Short for run.{key}. {run[key]['description']}"}
        for key in SHORTCUTS
    }
    schema["properties"] = {**shortcuts, **schema["properties"]}
    level = schema["$defs"]["LoggingConfig"]["properties"]["level"]
    level["enum"] += [name.lower() for name in level["enum"]]
    for node in _nodes(schema):
        if node.get("type") == "number":
            # Some editors take `3e-4`, which has no decimal point, for text.
            node.update(type=["number", "string"], pattern=r"^[-+.0-9eE_]+$")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        **schema,
        "title": "Speedtronic configuration",
        "description": "One training run; every key has a default.",
    }


def markdown_page() -> str:
    """Return the content of docs/configuration.md."""
    schema = _models()
    parts = [_INTRODUCTION, "## Top level", *_top_level(schema)]
    for name, node in schema["properties"].items():
        if name not in FLAGS:
            section = schema["$defs"][node["anyOf"][0]["$ref"].rpartition("/")[2]]
            parts += [f"## {name}", node["description"], _table(section["properties"])]
            if name in _NOTES:
                parts.insert(-1, _NOTES[name])
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _models() -> Node:
    """Return pydantic's schema with standard names, and null allowed where it is the default."""
    schema = SpeedtronicConfig.model_json_schema(schema_generator=_Generator)
    for node in _nodes(schema):
        for ours, standard in _BOUNDS.items():
            if ours in node:
                node[standard] = node.pop(ours)
    for model in [schema, *schema["$defs"].values()]:
        for node in model["properties"].values():
            if node.get("default") is None:  # null, or made by a factory
                _allow_null(node)
    return schema


def _allow_null(node: Node) -> None:
    if "$ref" in node:
        node["anyOf"] = [{"$ref": node.pop("$ref")}, {"type": "null"}]
    elif "type" in node:
        node["type"] = [node["type"], "null"]


def _nodes(value: Any) -> Iterator[Node]:
    """Yield every mapping in a schema, including the schema itself."""
    if isinstance(value, dict):
        yield value
        for inner in list(value.values()):
            yield from _nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


def _top_level(schema: Node) -> list[str]:
    sections = [name for name in schema["properties"] if name not in FLAGS]
    links = "\n".join(f"[{name}]: #{name}" for name in sections)
    short = ", ".join(f"`{key}`" for key in SHORTCUTS)
    return [
        f"The sections are {', '.join(f'[{name}]' for name in sections)}.",
        links,
        f"{short} may be written at the top level instead of in `run`.",
        _table({name: schema["properties"][name] for name in FLAGS}),
    ]


def _table(properties: Node) -> str:
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, node in properties.items():
        meaning = " ".join(node["description"].split())
        cells = (f"`{key}`", _value(node), _default(node), meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _default(node: Node) -> str:
    default = node.get("default", {})  # what a factory makes is an empty mapping
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _value(node: Node) -> str:
    """Describe in words what values a key may have."""
    if "anyOf" in node:
        return " or ".join(_value(choice) for choice in node["anyOf"])
    if "enum" in node:
        return ", ".join(f"`{name}`" for name in node["enum"])
    if "pattern" in node:
        return "`package.module:name`"
    kind, *null = node["type"] if isinstance(node["type"], list) else [node["type"]]
    words = _list(node) if kind == "array" else _WORDS[kind] + _bounds(node)
    return " or ".join([words, *(_WORDS[name] for name in null)])


def _list(node: Node) -> str:
    if "prefixItems" in node:
        return f"list of {len(node['prefixItems'])}, each a {_value(node['prefixItems'][0])}"
    return f"list of {_value(node['items'])}"


def _bounds(node: Node) -> str:
    found = [f"{sign} {node[name]}" for name, sign in _SIGNS.items() if name in node]
    return " " + " and ".join(found) if found else ""


if __name__ == "__main__":
    print(markdown_page(), end="")
