"""What of a value may be shown: secrets blanked, and for a message a short form."""

import re
import reprlib
from collections.abc import Mapping
from typing import Any

_SECRET_KEY = re.compile(r"(password|secret|token|api_key|access_key)$", re.IGNORECASE)
_USER_INFO = re.compile(r"(?<=://)[^/\s]*@")


def redact(value: Any, key: str = "") -> Any:
    """Return a copy with `***` for user info inside URLs and for text whose key names a secret.

    A key names a secret if it ends with password, secret, token, api_key or access_key.
    """
    if isinstance(value, Mapping):
        return {name: redact(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner, key) for inner in value]
    if isinstance(value, str):
        return "***" if _SECRET_KEY.search(key) else _USER_INFO.sub("***@", value)
    return value


class _Shown(reprlib.Repr):
    """A bounded repr, also of a value that contains itself, in the words of YAML."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_NoneType(self, value: None, level: int) -> str:
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:
        return str(value).lower()

    def repr_str(self, value: str, level: int) -> str:
        # Before it is shortened: the end of a password must not lose the @ that gives it away.
        return super().repr_str(redact(value), level)


show = _Shown().repr
"""Return a short text of any value for a message, without user info inside URLs."""
