"""Keys of a configuration that a caller overrides: dotted names, shortcuts, user mappings."""

from collections.abc import Container, Mapping
from typing import Any

from speedtronic.config.sections import ModelConfig
from speedtronic.errors import ConfigError
from speedtronic.redaction import format_value, redact_at

SHORTCUTS = ("name", "seed", "device", "max_steps", "output_dir")
"""Keys of the top level that stand for the same key of `run`."""

FLAGS = ("compile", "gradient_checkpointing")
"""Keys of the top level that are values, not sections."""


def expand_shortcuts(changes: Mapping[str, object], fields: Container[str]) -> dict[str, object]:
    """Write the keys of `changes` in full: `seed` becomes `run.seed`.

    Args:
        changes: values by dotted key.
        fields: the sections and flags of a configuration.

    Raises:
        ConfigError: a key is a whole section, or has two different values.
    """
    full: dict[str, object] = {}
    for short, value in changes.items():
        key = f"run.{short}" if short in SHORTCUTS else short
        if key in fields and key not in FLAGS:
            raise ConfigError(f"{key} is a whole section; change one key of it, such as run.seed")
        if key in full and full[key] != value:
            both = (format_value(redact_at([key], given)) for given in (full[key], value))
            raise ConfigError(f"{key} is given twice, as {' and as '.join(both)}")
        full[key] = value
    return full


def is_user_key(section: str, field: str) -> bool:
    """Whether `field` lies inside a mapping that is passed to the user's own code."""
    key = field.partition(".")[0]
    if section == "model":
        return key not in ModelConfig.model_fields
    return section in ("data", "validation") and key == "dataset_args"


def set_nested(given: dict[str, Any], dotted: str, value: object) -> None:
    """Set the key `dotted` of nested mappings, and create the mappings that are missing.

    Raises:
        ConfigError: something on the way is not a mapping.
    """
    *folders, last = dotted.split(".")
    for depth, folder in enumerate(folders, start=1):
        inner = given.get(folder)
        if not isinstance(inner, Mapping | None):
            path, kind = ".".join(folders[:depth]), "list" if isinstance(inner, list) else "value"
            raise ConfigError(f"{dotted}: {path} is a {kind}, not a mapping; give it as a whole")
        given[folder] = dict(inner or {})
        given = given[folder]
    given[last] = value
