"""Describes the problems of a configuration, in one line each."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from speedtronic.redaction import format_value, redact_at

Location = tuple[int | str, ...]


def explain_problem(
    problem: Mapping[str, Any], sections: Mapping[str, Sequence[str]], others: Sequence[str]
) -> list[str]:
    """Return one line for an error of pydantic, or a line for each broken rule of a section.

    Args:
        problem: one of `ValidationError.errors()`.
        sections: the keys of each section.
        others: further keys that the top level allows.
    """
    location, kind = problem["loc"], problem["type"]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if kind in ("extra_forbidden", "invalid_key"):
        return [unknown_key(location, sections, others)]
    if kind == "value_error" and len(location) < 2:
        return message.split("\n")  # rules about several keys, which name them
    if kind == "model_type":
        message = "must be a mapping of keys to values"
    message = re.sub(r"^\w+ should ", "must ", message)
    shown = format_value(redact_at(location, problem["input"]))
    return [f"{_dotted(location)} is {shown}; it {message}"]


def unknown_key(
    location: Location, sections: Mapping[str, Sequence[str]], others: Sequence[str]
) -> str:
    """Return the line for an unknown key, with the known key that was probably meant."""
    key, name = _dotted(location), str(location[-1])
    known = sections[str(location[0])] if len(location) > 1 else [*sections, *others]
    elsewhere = [f"{section}.{name}" for section, keys in sections.items() if name in keys]
    if near := elsewhere or difflib.get_close_matches(name, known, n=1):
        return f"{key}: unknown key; did you mean '{near[0]}'?"
    return f"{key}: unknown key; allowed are {', '.join(known)}"


def _dotted(location: Location) -> str:
    """Write a location as a user would: `optimizer.betas[1]`."""
    indices = "".join(f"[{index}]" for index in location[2:])
    keys = ".".join(map(str, location[:2])).replace("\n", "\\n")  # a message is one line
    return keys + indices if location else "the top level"
