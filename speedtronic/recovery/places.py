"""From what a person typed to run directories."""

import glob
from collections.abc import Sequence
from pathlib import Path

from speedtronic.errors import UsageError


def expand(run_dirs: Sequence[str]) -> list[str]:
    """The directories that paths and globs name, each once, those of a glob sorted.

    What is there under exactly the name given is no glob, whatever characters it has.

    Raises:
        UsageError: a glob that matches no directory, or a path that is none.
    """
    found: list[str] = []
    for given in run_dirs:
        if "://" in given or Path(given).is_dir():
            found.append(given)
        elif glob.has_magic(given):
            paths = sorted(glob.glob(given, recursive=True))  # noqa: PTH207
            matches = [path for path in paths if Path(path).is_dir()]
            if not matches:
                raise UsageError(f"{given}: no directory matches; name a run's output directory")
            found += matches
        else:
            raise UsageError(f"{given} is not a directory; name a run's output directory")
    return list(dict.fromkeys(found))
