"""Defines the base class of configuration sections, and the types of their fields."""

import math
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from speedtronic.config.references import refuse_broken

MAX_DEPTH = 60
"""Most levels of nesting in a configuration."""

# The default of a field that depends on another field. It is set when the section is created or, if
# it depends on another section, when the whole configuration is created.
DERIVED: Any = None

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


def _to_float(value: object) -> object:
    """Convert a number given as text, such as one from an environment variable."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _to_path(value: object) -> object:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(path, str) and path.lower() in ("none", "nil"):
        raise ValueError("must be a path; null, which means none, is written null")
    if isinstance(path, str):
        refuse_broken(path, is_path=True)
    return path


def _to_count(value: object) -> object:
    if isinstance(value, int) and value >= 2**63:
        raise ValueError("must be less than 2^63")
    return value


def plain_copy(value: Any, depth: int = 0) -> Any:
    """Return a copy of a value that JSON, YAML and checkpoints can all hold.

    Raises:
        ValueError: they cannot hold it; the message completes a sentence that begins with "it".
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"must be nested at most {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"must have text for keys, not {key!r}; write it in quotes")
        return {key: plain_copy(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_copy(inner, depth + 1) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):
        refuse_broken(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"must hold finite numbers, not {value}; write text for it")
    if not isinstance(value, str | int | float | bool | None):
        kind = type(value).__name__
        raise ValueError(
            f"must be of text, numbers, true, false, null, lists and mappings, not of a {kind}"
        )
    return value


def _to_pair(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("must be a list of two numbers, such as [0.9, 0.95]")
    return tuple(value)


def _to_text_path(value: object) -> object:
    entries = value if isinstance(value, list | tuple) else [value]
    paths = [_to_path(entry) for entry in entries]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ValueError("must be a file, a glob or a list of them")
    return tuple(paths) if isinstance(value, list | tuple) else paths[0]


def _to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _to_level(value: object) -> object:
    known = isinstance(value, str) and value.upper() in get_args(Level)
    return str(value).upper() if known else value


Count = Annotated[int, Field(ge=1), BeforeValidator(_to_count)]
NonNegativeInt = Annotated[int, Field(ge=0), BeforeValidator(_to_count)]
Arguments = Annotated[dict[str, Any], BeforeValidator(plain_copy)]
"""A mapping that is passed to the user's own code, with any keys."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # the widest range that every random generator accepts
Float = Annotated[float, BeforeValidator(_to_float)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
BelowOne = Annotated[Float, Field(ge=0, lt=1)]
Path = Annotated[str, BeforeValidator(_to_path)]
TextPath = Annotated[str | tuple[str, ...], BeforeValidator(_to_text_path)]
Pair = Annotated[tuple[BelowOne, BelowOne], BeforeValidator(_to_pair)]
LevelName = Annotated[Level, BeforeValidator(_to_level)]
Names = Annotated[tuple[str, ...], BeforeValidator(_to_tuple)]
ObjectName = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]
"""`package.module:attribute`, imported from the working directory or the installed packages."""


def set_derived(section: "Section", **derived: object) -> None:
    """Set fields that are still None, despite `frozen` and without marking them as given."""
    for key, value in derived.items():
        if section.__dict__[key] is None:
            section.__dict__[key] = value


def require_rules(*rules: tuple[bool, str]) -> None:
    """Raise one ValueError with a line for each rule that does not hold."""
    if broken := [message for holds, message in rules if not holds]:
        raise ValueError("\n".join(broken))


class Section(BaseModel):
    """Base of all sections: frozen, and strict about keys, types, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        str_min_length=1,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """Drop null for a whole section and for keys with a default of null, as if left out."""
        if not isinstance(given, Mapping):
            return given
        optional = {
            key
            for key, field in cls.model_fields.items()
            if field.default is None or field.default_factory is not None
        }
        return {k: v for k, v in given.items() if v is not None or k not in optional}
