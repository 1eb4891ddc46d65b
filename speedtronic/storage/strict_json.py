"""Writes JSON that every parser reads: NaN and infinity become null."""

import json
import math
from typing import Any


def strict_json(value: Any, **options: Any) -> str:
    """Return JSON as the standard defines it: NaN and infinity become null.

    Args:
        options: as `json.dumps` takes them.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
