"""Knows the files of a run's output directory, and finds the run's checkpoints from there.

`config.yaml` holds the resolved configuration. `run.json` holds the run id, where the run was last
trained, and where its checkpoints are; by it a copy of the directory is recognized as one.
"""

import logging
import os
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedtronic.checkpoint import layout
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError, CorruptError, StorageError, UsageError
from speedtronic.redaction import MARK, redact
from speedtronic.storage.base import Storage
from speedtronic.storage.regular_files import (
    disk_errors,
    read_json,
    read_text,
    replace_text,
)
from speedtronic.storage.strict_json import strict_json
from speedtronic.storage.urls import is_local, local_path, open_storage

CONFIG_YAML = "config.yaml"
RUN_JSON = "run.json"
REPORTS = ("report.json", "report.md", "loss.png")

LIMIT_BYTES = 2**20  # of run.json

logger = logging.getLogger(__name__)


def logging_path(config: SpeedtronicConfig, name: str | None) -> Path | None:
    """Return the path of a file in the `logging` section, relative to `run.output_dir`."""
    return None if name is None else local_path(config.under_output_dir(name))


def write_config(config: SpeedtronicConfig) -> None:
    """Write the resolved configuration to `config.yaml`, unless it is there already.

    A crash leaves the file as it was or as it is now.

    Raises:
        OutputDirError, StorageError: it cannot be written.
    """
    path = local_path(config.run.output_dir) / CONFIG_YAML
    text = config.to_yaml(redact_secrets=True)
    try:
        if read_text(path) == text:
            return
    except FileNotFoundError:
        pass
    except CorruptError as error:
        logger.warning("%s; it is written anew", error)
    replace_text(path, text)


def read_config(directory: Path) -> SpeedtronicConfig:
    """Read the configuration that a run has written to `config.yaml` in its output directory.

    Raises:
        FileNotFoundError: there is none.
        CorruptError: it is damaged: a run writes every section, so none stands for its defaults.
        ConfigError: it holds what this version does not know.
    """
    path = directory / CONFIG_YAML
    text = read_text(path)
    try:
        config = SpeedtronicConfig.parse(text, str(path))
    except ConfigError as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    if missing := config.missing_sections():
        raise CorruptError(f"{path} is damaged: it lacks {', '.join(missing)}")
    return config


def record_place(directory: Path, run_id: str, checkpoints: str = "checkpoints") -> None:
    """Write run id, place of the directory and of its checkpoints to `run.json`, if they changed.

    A crash leaves the file as it was or as it is now.

    Args:
        directory: the run's output directory.
        run_id: of the run.
        checkpoints: path or URL of its checkpoints, as configured, without secrets.

    Raises:
        OutputDirError, StorageError: it cannot be written.
    """
    path = directory / RUN_JSON
    with disk_errors(f"cannot write {path}"):
        here = {"run_id": run_id, "checkpoints": checkpoints, **_place(directory)}
    former: dict[str, Any] = {}
    try:
        former = read_json(path, LIMIT_BYTES)
    except FileNotFoundError:
        pass
    except CorruptError as error:
        logger.warning("%s; it is written anew", error)
    if {key: former.get(key) for key in here} == here:
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    replace_text(path, strict_json({**here, "recorded_at": now}, indent=2) + "\n")


def read_place(directory: Path) -> dict[str, Any]:
    """Return the content of `run.json`; an empty dict if it is missing or damaged.

    Raises:
        StorageError, OutputDirError: it cannot be read, which says nothing of what is in it.
    """
    try:
        return read_json(directory / RUN_JSON, LIMIT_BYTES)
    except (FileNotFoundError, CorruptError):
        return {}


def place_problem(directory: Path) -> str:
    """Say what is wrong with a damaged `run.json`; empty otherwise. Raises as `read_place`."""
    try:
        read_json(directory / RUN_JSON, LIMIT_BYTES)
    except FileNotFoundError:
        return ""
    except CorruptError as error:
        return str(error)
    return ""


def displacement(directory: Path) -> str:
    """Say how this directory differs from the one that the run was last trained in.

    Empty if it does not differ, or if nothing was recorded.
    """
    stored = read_place(directory)
    if not stored:
        return ""
    here = _place(directory)
    if stored.get("path") != here["path"]:
        return f"copied or moved from {stored.get('path')} on {stored.get('host')}"
    if stored.get("inode") != here["inode"]:
        return "a copy of the directory that had this path before"
    if stored.get("host") == here["host"] and stored.get("file_system") != here["file_system"]:
        return "on another file system than before"
    return ""


def _place(directory: Path) -> dict[str, Any]:
    # A device's number is another after a reboot; the id of its file system mostly is not.
    return {
        "path": str(directory.resolve()),
        "host": socket.gethostname(),
        "inode": directory.stat().st_ino,
        "file_system": f"{os.statvfs(directory).f_fsid:x}",
    }


@dataclass(frozen=True)
class Located:
    """Says where a run keeps its checkpoints, and how that is known.

    Attributes:
        checkpoints: their path or URL.
        known: False where it is a guess, for config.yaml and run.json do not tell.
        config: the run's own; None if there is none, or it is damaged.
        problem: what is wrong with config.yaml; empty also if there is none.
    """

    checkpoints: str
    known: bool = True
    config: SpeedtronicConfig | None = None
    problem: str = ""


def locate(directory: Path, given: SpeedtronicConfig | None = None) -> Located:
    """Find the checkpoints of a run: by its config.yaml, else by its run.json, else by `given`.

    A run may have been moved: what config.yaml calls a relative path lies under `directory`.

    Args:
        directory: the run's output directory, or that of its checkpoints.
        given: a configuration to use where the run's own says nothing.

    Raises:
        StorageError: a file cannot be read, which says nothing of what is in it.
    """
    recorded = recorded_checkpoints(directory)
    config, problem = None, ""
    try:
        config = read_config(directory)
    except FileNotFoundError:
        pass
    except (ConfigError, CorruptError) as error:
        problem = str(error)
    if config is not None:
        own = _under(directory, config.checkpoint.directory)
        if recorded and not _same(own, recorded) and not _holds(own) and _holds(recorded):
            problem = (
                f"{directory / CONFIG_YAML} says that the checkpoints are in {own}, where there "
                f"are none; {RUN_JSON} says in {recorded}"
            )
            return Located(recorded, True, config, problem)
        return Located(own, True, config, problem)
    if recorded:
        return Located(recorded, True, None, problem)
    if given is not None:
        return Located(_under(directory, given.checkpoint.directory), True, None, problem)
    beside = directory / "checkpoints"
    return Located(str(beside if beside.is_dir() else directory), False, None, problem)


def recorded_checkpoints(directory: Path) -> str:
    """Return the path or URL of the checkpoints that `run.json` names; empty if it names none."""
    recorded = read_place(directory).get("checkpoints")
    if not isinstance(recorded, str) or not recorded or MARK in recorded or "${" in recorded:
        return ""
    return _under(directory, recorded)


def checkpoints_elsewhere(config: SpeedtronicConfig) -> str:
    """Return where the run in `run.output_dir` has checkpoints, if `config` names another place.

    Empty if it names the same place, or if there are none.
    """
    recorded = recorded_checkpoints(local_path(config.run.output_dir))
    if not recorded or _same(recorded, config.checkpoint_dir) or not _holds(recorded):
        return ""
    return recorded


def _under(directory: Path, stored: str) -> str:
    return stored if "://" in stored else str(directory / stored)


def _same(a: str, b: str) -> bool:
    if is_local(a) and is_local(b):
        return local_path(a).resolve() == local_path(b).resolve()
    return str(redact(a)).rstrip("/") == str(redact(b)).rstrip("/")


def _holds(checkpoints: str) -> bool:
    """Return whether there are checkpoints; True also if the store cannot be read."""
    try:
        return any(True for _ in layout.steps_newest_first(open_storage(checkpoints).list()))
    except (ConfigError, StorageError):
        return True


def find_store(directory: str) -> Storage:
    """Open the checkpoints of a run's output directory, or those that lie in `directory` itself.

    Args:
        directory: a path or URL.

    Raises:
        UsageError: there is no such directory.
    """
    if not is_local(directory):
        return open_storage(directory)
    path = local_path(directory)
    if not path.is_dir():
        raise UsageError(f"{directory} is not a directory")
    located = locate(path)
    if located.problem:  # no reason to hide what is on disk
        print(f"speedtronic: {located.problem}; looking in {located.checkpoints}", file=sys.stderr)
    return open_storage(located.checkpoints)
