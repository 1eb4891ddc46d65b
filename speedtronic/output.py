"""Where a run writes: refused before anything is written if that cannot be, made otherwise."""

import logging
import os
from pathlib import Path

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.urls import is_local, local_path
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError, CorruptError, OutputDirError
from speedtronic.place import RUN_JSON
from speedtronic.run_directory import (
    disk_errors,
    make_directory,
    read_text,
    refuse_other_kinds,
    replace_text,
)

CONFIG_YAML = "config.yaml"
REPORTS = ("report.json", "report.md", "loss.png")

logger = logging.getLogger(__name__)


def logging_path(config: SpeedtronicConfig, name: str | None) -> Path | None:
    """Where a file of the `logging` section lies: a relative one under `run.output_dir`."""
    return None if name is None else local_path(config.under_output_dir(name))


def check_writable(config: SpeedtronicConfig, *, checkpoints: bool) -> None:
    """Look whether all that the run writes can be written; nothing is created.

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
    taken = own | {directory / name for name in (*REPORTS, layout.LOCK)}
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
    if lacking := config.lacking():
        raise CorruptError(f"{path} is damaged: it lacks {', '.join(lacking)}")
    return config


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
