"""Loads checkpoints in a child process, so that a damaged file cannot harm this one.

A load that crashes the child, or runs out of memory there, is an answer, never an exception.
"""

from typing import Self

from speedtronic.errors import WorkerDied
from speedtronic.worker.messages import Loaded, LoadRequest, parse_loaded
from speedtronic.worker.process import ChildProcess

SPARE_BYTES = 256 * 2**20


class LoadProcess:
    """Loads checkpoints in a child process, started at the first load; a context manager.

    Args:
        spare_bytes: memory that it may take beyond three times the payload; enforced on Linux.
    """

    def __init__(self, spare_bytes: int = SPARE_BYTES) -> None:
        self._spare_bytes = spare_bytes
        self._child: ChildProcess | None = None

    def load(self, root: str, step: int) -> Loaded:
        """Load the checkpoint of `step` in the directory `root`, verified and `weights_only`."""
        if self._child is None:
            # Modules that lie in the working directory, maybe the run's, must not be imported.
            self._child = ChildProcess("speedtronic.worker.load_main", safe_path=True)
        child = self._child
        try:
            child.send(LoadRequest(root, step, self._spare_bytes))
            lines = child.lines(None)
        except WorkerDied:
            lines = []
        if not lines:
            ending = child.ending()
            self.close()
            return Loaded("died", f"the process that loaded it {ending}")
        return parse_loaded(lines[0])

    def close(self) -> None:
        """Kill the process; it is reaped on return."""
        child, self._child = self._child, None
        if child is not None:
            child.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
