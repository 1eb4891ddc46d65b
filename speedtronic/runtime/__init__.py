"""Builds a run from its configuration and trains it. The one place where all packages meet."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from speedtronic.runtime.build import build_runtime, train_from_config

__all__ = ["build_runtime", "train_from_config"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: it needs torch, which takes a second to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("speedtronic.runtime.build"), name)
