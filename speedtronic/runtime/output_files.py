"""Checks that a run can write all its files, and makes their folders."""

import os
from pathlib import Path

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import OutputDirError
from speedtronic.run_directory import CONFIG_YAML, REPORTS, RUN_JSON, logging_path
from speedtronic.storage.names import LOCK
from speedtronic.storage.regular_files import (
    disk_errors,
    make_directory,
    refuse_other_kinds,
)
from speedtronic.storage.urls import is_local, local_path


def check_writable(config: SpeedtronicConfig, *, checkpoints: bool) -> None:
    """Check that every file and directory of the run can be written; nothing is created.

    Args:
        checkpoints: whether the directory of the checkpoints is needed.

    Raises:
        OutputDirError: names the key and what is in the way.
        StorageError: the disk or the machine refused to look.
    """
    files = _files(config)
    for key, folder in _folders(config, checkpoints).items():
        _refuse_unwritable(key, folder, is_file=False)
    for key, file in files.items():
        _refuse_unwritable(key, file, is_file=True)
    directory = local_path(config.run.output_dir)
    own = {directory / name for name in (CONFIG_YAML, RUN_JSON)}
    for path in (*own, *files.values()):
        refuse_other_kinds(path)
    taken = own | {directory / name for name in (*REPORTS, LOCK)}
    for key, file in files.items():
        if file in taken:
            raise OutputDirError(f"{key} is {file}, which the run writes for another purpose")
        taken.add(file)


def make_folders(config: SpeedtronicConfig, *, checkpoints: bool) -> None:
    """Make every directory that the run writes to.

    Raises:
        OutputDirError, StorageError: one of them cannot be made.
    """
    folders = [*_folders(config, checkpoints).values()]
    folders += [file.parent for file in _files(config).values()]
    for folder in dict.fromkeys(folders):
        make_directory(folder)


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
    with disk_errors(f"{key}: cannot look at {path}"):
        nearest = next(place for place in (path, *path.parents) if place.exists())
        is_directory = nearest.is_dir()
    if is_directory == (is_file and nearest == path):
        what = "is a directory" if is_directory else "is not a directory"
    elif not os.access(nearest, os.W_OK):
        what = "may not be written"
    else:
        return
    raise OutputDirError(f"{key}: cannot write {path}: {nearest} {what}")
