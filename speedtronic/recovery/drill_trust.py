"""Decide whether a drill may run the code that a run's own configuration names."""

import os
import stat
from pathlib import Path

from speedtronic.config import SpeedtronicConfig


def reason_for_distrust(directory: Path) -> str:
    """Say why code that a run's config.yaml names must not be run; empty if it may be.

    Nobody but the current user may be able to write there: whoever edits `config.yaml` decides what
    code is run.

    Raises:
        OSError: the directory cannot be looked at.
    """
    for path in (directory, directory / "config.yaml"):
        if not path.exists():
            continue
        status = path.stat()
        if status.st_uid != os.geteuid():
            return f"{path} belongs to user {status.st_uid}, the drill runs as {os.geteuid()}"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{path} can be written by other users ({stat.filemode(status.st_mode)})"
    return ""


def named_code(config: SpeedtronicConfig) -> list[str]:
    """List the objects of the user's own code that a drill with `config` imports and calls."""
    named = {
        "model.name": None if config.model.is_reference else config.model.name,
        "data.dataset": config.data.dataset,
        "data.tokenizer": config.data.tokenizer,
    }
    return [f"{key} {name}" for key, name in named.items() if name and ":" in name]
