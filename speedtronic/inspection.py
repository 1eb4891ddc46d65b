"""What `speedtronic inspect` shows of a directory, and how it finds the checkpoints in it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from speedtronic.checkpoint import layout
from speedtronic.checkpoint.storage import Storage
from speedtronic.checkpoint.urls import is_local, local_path, open_storage
from speedtronic.checkpoint.verify import Survey
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError, CorruptError, StorageError, UsageError
from speedtronic.output import CONFIG_YAML, read_config
from speedtronic.place import RUN_JSON, read_place
from speedtronic.redaction import MARK, redact


@dataclass(frozen=True)
class Located:
    """Where a run keeps its checkpoints, and how that is known.

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
    """Where the checkpoints of a run are, as its run.json says; empty if it does not."""
    recorded = read_place(directory).get("checkpoints")
    if not isinstance(recorded, str) or not recorded or MARK in recorded or "${" in recorded:
        return ""
    return _under(directory, recorded)


def checkpoints_elsewhere(config: SpeedtronicConfig) -> str:
    """Where there are checkpoints of the run in `run.output_dir`, if not where `config` has them;
    empty otherwise."""
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
    """Whether there are checkpoints; True also where that cannot be seen."""
    try:
        return any(True for _ in layout.steps(open_storage(checkpoints).list()))
    except (ConfigError, StorageError):
        return True


def find_store(directory: str) -> Storage:
    """The checkpoints of a run's output directory, or those in `directory`, a path or URL, itself.

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


def as_text(found: Survey) -> str:
    """A table of the checkpoints, and what a resume would do."""
    table = Table(box=None, pad_edge=False)
    for column in ("step", "status", "size", "samples", "state digest", "reason"):
        justify: Any = "right" if column in ("step", "size") else "left"
        table.add_column(column, justify=justify, no_wrap=column != "reason")
    for c in found.checkpoints:
        size = "" if c.size_bytes is None else f"{c.size_bytes / 2**20:.1f} MiB"
        samples = "" if c.samples is None else str(c.samples)
        table.add_row(str(c.step), c.status, size, samples, c.state_digest or "", c.reason)
    console = Console()
    # A terminal folds long lines by itself; a digest cut short would be of no use.
    console.width = max(console.width, 110)
    with console.capture() as captured:
        if found.checkpoints:
            console.print(table)
        else:
            console.print("no checkpoints")
    pointer = found.pointer_problem or (
        f"step {found.pointer.step}" if found.pointer else "missing"
    )
    chosen = "nothing" if found.selected is None else f"step {found.selected}"
    rejected = [f"in quarantine: {q.file}: {q.reason}" for q in found.quarantine]
    summary = [f"latest.json: {pointer}", *rejected, f"a resume would start from: {chosen}"]
    return captured.get() + "\n" + "\n".join(summary)
