"""Where a run writes: refused before anything is written if that cannot be, made otherwise."""

import os
from pathlib import Path

from speedtronic.checkpoint.urls import is_local, local_path
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import OutputDirError


def logging_path(config: SpeedtronicConfig, name: str | None) -> Path | None:
    """Where a file of the `logging` section lies: a relative one under `run.output_dir`."""
    return None if name is None else local_path(config.under_output_dir(name))


def check_writable(config: SpeedtronicConfig, *, checkpoints: bool) -> None:
    """Look whether all that the run writes can be written; nothing is created.

    Args:
        checkpoints: whether the directory of the checkpoints is needed.

    Raises:
        OutputDirError: names the key and what is in the way.
    """
    for key, folder in _folders(config, checkpoints).items():
        _refuse_unwritable(key, folder, is_file=False)
    for key, file in _files(config).items():
        _refuse_unwritable(key, file, is_file=True)


def make_folders(config: SpeedtronicConfig, *, checkpoints: bool) -> None:
    """Make every directory that the run writes to.

    Raises:
        OutputDirError: one of them cannot be made.
    """
    folders = [*_folders(config, checkpoints).values()]
    for folder in folders + [file.parent for file in _files(config).values()]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputDirError(f"cannot make the directory {folder}: {error.strerror}") from error


def write_config(config: SpeedtronicConfig) -> None:
    """Write the resolved configuration to `config.yaml`, unless it is there already.

    Raises:
        OutputDirError: it cannot be written.
    """
    path = local_path(config.run.output_dir) / "config.yaml"
    text = config.to_yaml(redact_secrets=True)
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputDirError(f"cannot write {path}: {error.strerror}") from error


def _folders(config: SpeedtronicConfig, checkpoints: bool) -> dict[str, Path]:
    folders = {"run.output_dir": local_path(config.run.output_dir)}
    if checkpoints and is_local(config.checkpoint_dir):
        folders["checkpoint.directory"] = local_path(config.checkpoint_dir)
    return folders


def _files(config: SpeedtronicConfig) -> dict[str, Path]:
    section = config.logging
    names = {"logging.file": section.file, "logging.json_file": section.json_file}
    return {key: path for key, name in names.items() if (path := logging_path(config, name))}


def _refuse_unwritable(key: str, path: Path, *, is_file: bool) -> None:
    nearest = next(place for place in (path, *path.parents) if place.exists())
    if nearest.is_dir() == (is_file and nearest == path):
        what = "is a directory" if nearest.is_dir() else "is not a directory"
    elif not os.access(nearest, os.W_OK):
        what = "may not be written"
    else:
        return
    raise OutputDirError(f"{key}: cannot write {path}: {nearest} {what}")
