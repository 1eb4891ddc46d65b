"""Expand paths and globs that a person typed to run directories."""

import glob
from collections.abc import Sequence
from pathlib import Path

from speedtronic.checkpoint import layout
from speedtronic.errors import UsageError


def expand(run_dirs: Sequence[str]) -> list[str]:
    """List the directories that paths and globs name, each once, those of a glob sorted.

    A directory that exists under exactly the given name is no glob, whatever characters it has. Of
    the matches of a glob only runs count: `runs/*` may match files and other folders too.

    Raises:
        UsageError: a glob that matches no run, or a path that is no directory.
    """
    found: list[str] = []
    for given in run_dirs:
        if "://" in given or Path(given).is_dir():
            found.append(given)
        elif glob.has_magic(given):
            paths = sorted(glob.glob(given, recursive=True))  # noqa: PTH207
            matches = [path for path in paths if _is_run(Path(path))]
            if not matches:
                raise UsageError(
                    f"{given}: no run among the {len(paths)} directories and files that match; "
                    "name runs' output directories"
                )
            found += matches
        else:
            raise UsageError(f"{given} is not a directory; name a run's output directory")
    return list(dict.fromkeys(found))


def _is_run(path: Path) -> bool:
    """Whether a path is a run's directory, or a checkpoint directory outside any run."""
    if not path.is_dir():
        return False
    try:
        if _has_run(path):
            return True
        # The folders within a run, which `runs/**` matches too, are no runs of their own.
        return _has_checkpoints(path) and not (_has_run(path.parent) or _in_quarantine(path))
    except OSError:  # not to be read: the examination says so
        return True


def _has_run(path: Path) -> bool:
    return (path / "config.yaml").exists() or (path / "checkpoints").is_dir()


def _has_checkpoints(path: Path) -> bool:
    names = [entry.name for entry in path.iterdir()]
    return layout.POINTER in names or next(layout.steps_newest_first(names), None) is not None


def _in_quarantine(path: Path) -> bool:
    return path.name == "quarantine" and _has_checkpoints(path.parent)
