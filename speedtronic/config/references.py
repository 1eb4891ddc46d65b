"""Replaces `${NAME}` in a configuration by an environment variable, where the value is used.

The reference itself is stored, logged and shown. `$${NAME}` stands for the text `${NAME}`.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

from speedtronic.errors import ConfigError
from speedtronic.redaction import REFERENCE, redacted_keys, register_secret_texts, secrecy_level

_BROKEN = re.compile(r"(?<!\$)\$\{(?![A-Za-z_][A-Za-z0-9_]*\})")
_BARE = re.compile(r"^\$[A-Za-z_]\w*(?=/|$)")
_BARE_IN_PATH = re.compile(r"(?<!\$)\$[A-Za-z_]\w*")


def refuse_broken(text: str, *, is_path: bool = False) -> None:
    """Refuse references that are not written `${NAME}`, such as `$NAME` at the start of a path.

    Raises:
        ValueError: there is one; the message completes a sentence that begins with "it".
    """
    if _BROKEN.search(text):
        raise ValueError("must name a variable as ${NAME}; $${ stands for the text ${")
    if bare := (_BARE_IN_PATH if is_path else _BARE).search(text):
        name = bare[0][1:]
        raise ValueError(f"must name a variable as ${{{name}}}, with braces")


def substitute(value: Any, key: str) -> Any:
    """Return a copy of `value` with each reference replaced by its environment variable.

    Args:
        value: text, a number, or lists and mappings of such.
        key: of the value in the configuration, for messages.

    Raises:
        ConfigError: a variable is not set, or a value is one that redaction has blanked.
    """
    for blanked in redacted_keys(value, key):
        raise ConfigError(
            f"{blanked} is blanked (***): stored configurations keep no secrets; give the "
            "configuration that the run was begun with (--config), or one with ${NAME} there"
        )
    return _substituted(value, key)


def expand_path(path: str, key: str = "path") -> str:
    """Return a path or URL with `${NAME}` and a leading `~` expanded.

    Raises:
        ConfigError: a variable is not set.
    """
    path = _substituted(path, key)
    # Not by pathlib, which raises where there is no such user.
    return os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111


def _substituted(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _substituted(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_substituted(inner, f"{key}[{index}]") for index, inner in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value
    return REFERENCE.sub(lambda match: _variable(match[1], key), value).replace("$${", "${")


def _variable(name: str, key: str) -> str:
    text = os.environ.get(name)
    if text is None:
        raise ConfigError(
            f"{key}: the environment variable {name} is not set; set it, or write $${{{name}}} if "
            "the text itself is meant"
        )
    # Paths and numbers occur in many messages, so they are secrets only if a name says so.
    if (
        secrecy_level(name)
        or secrecy_level(key)
        or not (text.startswith(("/", "~", ".")) or text.isdigit())
    ):
        register_secret_texts([text])
    return text
