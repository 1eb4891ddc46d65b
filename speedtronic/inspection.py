"""What `speedtronic inspect` shows of a directory, and how it finds the checkpoints in it."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from speedtronic.checkpoint.storage import Storage
from speedtronic.checkpoint.urls import is_local, local_path, open_storage
from speedtronic.checkpoint.verify import Survey
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import ConfigError, UsageError


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
    if (path / "config.yaml").exists():
        # Where the run says it keeps them; but the directory may have been moved since.
        stored = _checkpoint_directory(path / "config.yaml")
        if not is_local(stored):
            return open_storage(stored)
        path = path / stored if "://" not in stored else local_path(stored)
    elif (path / "checkpoints").is_dir():
        path = path / "checkpoints"
    return open_storage(str(path))


def _checkpoint_directory(configuration: Path) -> str:
    try:
        return SpeedtronicConfig.load(configuration).checkpoint.directory
    except ConfigError as error:  # no reason to hide what is on disk
        print(f"speedtronic: {error}; looking in checkpoints/ beside it", file=sys.stderr)
        return "checkpoints"


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
