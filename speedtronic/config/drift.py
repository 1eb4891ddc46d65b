"""Compares the configuration in a checkpoint with the one that a run is resumed with.

A difference in a key that changes the numbers a run computes is refused, unless that key is allowed
by name; then the change is recorded. Paths, cadence, workers and the like may change freely. Shapes
are compared elsewhere: by parameter, where the weights are loaded.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from speedtronic.config.config import SpeedtronicConfig
from speedtronic.config.sections import TRAJECTORY
from speedtronic.config.yaml_text import parse_yaml
from speedtronic.errors import ConfigError, DriftError
from speedtronic.redaction import MARK, format_value, redact

DATA_KEY = "data.fingerprint"
MISSING = "nothing"

# The schedule's horizon has a rule of its own. Data are compared by fingerprint, not by path.
_NOT_JUDGED = {"scheduler.max_steps", "data.text_path", "data.synthetic"}
_KEYS = [
    (section, key)
    for section, keys in TRAJECTORY.items()
    for key in keys
    if f"{section}.{key}" not in _NOT_JUDGED
]
# A change of one of these changes the shape of a parameter.
_SHAPES = ("vocab_size", "n_layer", "n_kv_head", "d_model", "d_ff")
# With a change of one of these, the optimizer's state belongs to other parameters.
_FIXED = {"optimizer.name", "model.name", "model.tie_weights", *(f"model.{key}" for key in _SHAPES)}


@dataclass(frozen=True)
class Change:
    """A key that changes the numbers, with its value in the checkpoint and its value now."""

    key: str
    stored: Any
    current: Any

    def __str__(self) -> str:
        stored, current = format_value(self.stored), format_value(self.current)
        return f"{self.key}: the run has {stored}, configured is {current}"


def check_drift(
    stored: Mapping[str, Any],
    config: SpeedtronicConfig,
    *,
    fingerprints: tuple[str | None, str],
    allowed: Collection[str],
) -> list[Change]:
    """Compare the configuration in a checkpoint with the one of this start.

    Args:
        stored: the checkpoint's configuration, secrets redacted.
        config: the one to resume with.
        fingerprints: of the data, in the checkpoint (None if it has none) and now.
        allowed: keys that may differ, such as `optimizer.lr` or `data.fingerprint`.

    Returns:
        The differences, all of them allowed.

    Raises:
        DriftError: a key differs that is not allowed; names each with both values.
    """
    current = config.to_dict(redact_secrets=True)
    changes = _changes(redact(stored), current)
    if fingerprints[0] is not None and fingerprints[0] != fingerprints[1]:
        changes.append(Change(DATA_KEY, *fingerprints))
    refused = [change for change in changes if change.key not in allowed]
    if refused:
        keys = [f"--allow-change {change.key}" for change in refused]
        fixed = [change.key for change in refused if change.key in _FIXED]
        way_out = (
            f"take the weights only, with --init-from: {', '.join(fixed)} cannot change in a run"
            if fixed
            else f"go on with another run on purpose: {' '.join(keys)}"
        )
        raise DriftError(
            "the configuration is not the one of this run:\n"
            + "\n".join(f"  {change}" for change in refused)
            + f"\nset it back, or {way_out}"
        )
    return changes


def refuse_unallowable(allowed: Collection[str], config: SpeedtronicConfig) -> None:
    """Refuse keys of `--allow-change` that need no permission or cannot be changed.

    Raises:
        ConfigError: a key does not change the numbers, or cannot change in a run at all.
    """
    known = {f"{section}.{key}" for section, key in _KEYS}
    known |= {f"model.{key}" for key in config.to_dict()["model"]} | {DATA_KEY}
    known -= _FIXED
    for key in allowed:
        # Only the checkpoint knows which keys a user's own model had before.
        own = key.startswith("model.") and not config.model.is_reference
        if key in _FIXED:
            raise ConfigError(
                f"--allow-change {key}: cannot change in a run; --init-from takes the weights only"
            )
        if key not in known and not own:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"--allow-change {key}: not a key that needs it; {hint}")


def _changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[Change]:
    # A key that is missing in the checkpoint was added later, and counts as unchanged.
    found = [
        Change(f"{section}.{key}", stored[section][key], current[section][key])
        for section, key in _KEYS
        if key in stored.get(section, {}) and not _same(stored[section][key], current[section][key])
    ]
    before, now = stored.get("model", {}), current["model"]
    for key in sorted({*before, *now} - set(_SHAPES)):
        if not _same(before.get(key, MISSING), now.get(key, MISSING)):
            found.append(Change(f"model.{key}", before.get(key, MISSING), now.get(key, MISSING)))
    return found


def _same(stored: Any, current: Any) -> bool:
    """Whether two values are equal; blanked ones, and numbers stored as text, count as equal."""
    if MARK in (stored, current):
        return True
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        return stored.keys() == current.keys() and all(
            _same(inner, current[key]) for key, inner in stored.items()
        )
    if isinstance(stored, list) and isinstance(current, list):
        return len(stored) == len(current) and all(map(_same, stored, current))
    if isinstance(stored, str) and isinstance(current, int | float):
        try:  # earlier versions took a number such as 1e-4 for text
            return isinstance(parse_yaml(stored), int | float) and parse_yaml(stored) == current
        except (yaml.YAMLError, ValueError, RecursionError):
            return False
    if isinstance(stored, str) and isinstance(current, str) and MARK in stored:
        return (
            re.fullmatch(".*".join(map(re.escape, stored.split(MARK))), current, re.S) is not None
        )
    return bool(stored == current)
