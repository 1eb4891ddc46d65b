"""Turns a run's directory into a key for artifacts and events."""

import re
from pathlib import Path


def slug(run_dir: str) -> str:
    """Return a key as Prefect requires it, of a-z, digits and dashes: `runs-mine` for runs/mine.

    A directory below the working one is named from there, any other in full.
    """
    path = Path(run_dir).absolute()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return re.sub(r"[^a-z0-9]+", "-", str(path).lower()).strip("-") or "run"
