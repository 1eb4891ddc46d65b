"""Reads and writes YAML so that every text has one meaning, and refuses ambiguous text.

PyYAML follows YAML 1.1, in which `1e-4` is text, `0100` is 64, `1:30` is 90 and `no` is false. Here
numbers are written as in Python, and text that YAML readers understand differently is refused with
line and column. In quotes it is text.
"""

import re
from typing import Any

import yaml

from speedtronic.config.fields import MAX_DEPTH

MAX_NODES = 100_000
"""Most values in a document with its aliases expanded; a few lines can expand to 10^9 values."""

_DIGITS = r"[0-9](?:_?[0-9])*"
_INT = r"[-+]?(?:0|[1-9](?:_?[0-9])*|0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+)"
_FLOAT = (
    rf"[-+]?(?:(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?"
    rf"|{_DIGITS}[eE][-+]?{_DIGITS}|\.?(?:inf|Inf|INF)|[iI]nfinity)|\.?(?:nan|NaN|NAN)"
)
_REFUSED = {
    r"[-+]?0[0-9_]+": "is octal to some readers; write it without the leading zero",
    r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?": "is a number in base 60 to some readers",
    r"[-+]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?": "has commas; write 1000 or 1_000",
    r"[-+]?(?=[0-9_.]*[0-9])(?:[0-9]+_[0-9_.]*|[0-9.]+_[0-9_]*)": "has misplaced underscores",
    r"None|NONE": "is Python's word; write null",
    r"yes|Yes|YES|on|On|ON": "is true to some readers and text to others; write true",
    r"no|No|NO|off|Off|OFF": "is false to some readers and text to others; write false",
}
_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = "!ambiguous"

_SCALARS = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": _INT,
    "float": f"{_FLOAT}|{_INT}",  # whole numbers only with an explicit tag: int is tried first
}


def parse_yaml(text: str) -> Any:
    """Parse one YAML document.

    Raises:
        yaml.YAMLError: bad syntax or ambiguous text; most errors name line and column.
        ValueError, RecursionError: raised by PyYAML for some broken documents.
    """
    return yaml.load(text, _Loader)


def write_yaml(values: Any) -> str:
    """Return plain values as YAML, which `parse_yaml` reads back equal."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def ambiguity(text: str) -> str | None:
    """Return why `text` without quotes is ambiguous; None if it is not."""
    reasons = (reason for pattern, reason in _REFUSED.items() if re.fullmatch(pattern, text))
    return next(reasons, None)


class _Loader(yaml.SafeLoader):
    """Loads YAML with our scalars; limits depth and aliases, and refuses keys given twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, int] = {}  # id of a node -> nodes in it, aliases written out
        self._depth = self._num_nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.peek_event().start_mark
        self._depth += 1
        self._num_nodes += 1
        if self._depth > MAX_DEPTH:
            raise _at(mark, f"nested too deeply: more than {MAX_DEPTH} levels")
        if self._num_nodes > MAX_NODES:
            raise _at(mark, f"more than {MAX_NODES} values")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(node, yaml.ScalarNode) and id(node) not in self._sizes:
            raise _at(mark, "an alias stands inside what it is an alias of")
        return node

    def compose_sequence_node(self, anchor: Any) -> Any:
        node = super().compose_sequence_node(anchor)
        return self._sized(node, node.value)

    def compose_mapping_node(self, anchor: Any) -> Any:
        # Here, since during construction the node also has the keys merged by `<<`.
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, value in node.value:
            _settle_key(key, value)
            if key.value in seen:
                raise _at(key.start_mark, f"key {key.value!r} is given twice")
            seen.add(key.value)
        return self._sized(node, [part for pair in node.value for part in pair])

    def _sized(self, node: Any, parts: list[Any]) -> Any:
        size = 1 + sum(self._sizes.get(id(part), 1) for part in parts)
        if size > MAX_NODES:
            raise _at(node.start_mark, f"more than {MAX_NODES} values, aliases written out")
        self._sizes[id(node)] = size
        return node


class _Dumper(yaml.SafeDumper):
    """Writes YAML; quotes text that `_Loader` would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _settle_key(key: Any, value: Any) -> None:
    """Refuse keys that are no text; an ambiguous word, such as `no`, is text as a key."""
    if not isinstance(key, yaml.ScalarNode):
        raise _at(key.start_mark, "a key must be text")
    if key.tag == _AMBIGUOUS and not re.search("[0-9]", key.value):
        key.tag = _TAG + "str"
    if key.tag not in (_TAG + "str", _TAG + "merge"):
        raise _at(key.start_mark, f"key {key.value} is no text; write it in quotes")
    missing = isinstance(value, yaml.ScalarNode) and value.value == "" and value.style is None
    if missing and key.style is None and re.search(r"\w:\S", key.value):
        raise _at(key.start_mark, f"{key.value!r} has no space after its colon")


def _at(mark: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _scalar(loader: _Loader, node: Any) -> Any:
    """Return the value of a number or truth value; an explicit tag may not fit its text."""
    text, kind = loader.construct_scalar(node), node.tag.removeprefix(_TAG)
    if not re.fullmatch(_SCALARS[kind], text):
        raise _at(node.start_mark, f"{text!r} is no {kind}")
    if kind == "bool":
        return text.lower() == "true"
    try:
        return int(text, 0) if kind == "int" else float(re.sub(r"\.(?=inf|nan)", "", text.lower()))
    except ValueError:  # more digits than Python accepts
        raise _at(node.start_mark, f"a number of {len(text)} digits") from None


def _refuse(loader: _Loader, node: Any) -> None:
    text = node.value
    raise _at(node.start_mark, f"{text} {ambiguity(text)}, or {text!r} in quotes if it is text")


_PATTERNS = {_TAG + kind: pattern for kind, pattern in _SCALARS.items()}
_RESOLVERS = {**_PATTERNS, _TAG + "merge": "<<", _AMBIGUOUS: "|".join(_REFUSED)}
for _base in (_Loader, _Dumper):
    _base.yaml_implicit_resolvers = {
        None: [(tag, re.compile(f"(?:{pattern})\\Z")) for tag, pattern in _RESOLVERS.items()]
    }
# No dates, bytes and sets: neither JSON nor a checkpoint can hold them.
_Loader.yaml_constructors = {
    tag: made
    for tag, made in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "str", "seq", "map")
}
for _kind in ("bool", "int", "float"):
    _Loader.add_constructor(_TAG + _kind, _scalar)
_Loader.add_constructor(_AMBIGUOUS, _refuse)
