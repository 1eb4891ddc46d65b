"""Metrics as JSON lines, without duplicates or gaps however often the run was interrupted."""

import json
import os
from pathlib import Path
from typing import Any, Protocol

from speedtronic.errors import OutputDirError


class Hook(Protocol):
    """Told of what happens in training, as it happens, in the training thread."""

    def on_event(self, event: str, payload: dict[str, Any]) -> None: ...


class JsonLines:
    """A file of events, one JSON object a line, in the order of their `step`.

    Lines up to S are on disk before checkpoint S commits (`sync`), and restoring S drops later
    ones (`rewind`); so after any crash the file reads as that of an uninterrupted run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise OutputDirError(f"cannot write {path}: {error.strerror}") from error

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        self._file.write(json.dumps({"event": event, **payload}) + "\n")
        self._file.flush()  # to the kernel: a killed process loses no line, a tail shows it

    def sync(self) -> None:
        """Return once the lines so far would survive a power failure; for any thread."""
        os.fsync(self._file.fileno())

    def rewind(self, step: int) -> None:
        """Drop what was recorded after `step`, a line cut short by a crash included."""
        self._file.flush()
        keep = 0
        with self._path.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n") or _step(line) > step:
                    break
                keep += len(line)
        if keep < self._path.stat().st_size:
            os.truncate(self._path, keep)

    def close(self) -> None:
        self._file.close()


def _step(line: bytes) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # not a line of ours: whatever follows cannot be trusted either


def read_events(path: Path, event: str) -> list[dict[str, Any]]:
    """The recorded events of one kind, oldest first; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in events if record["event"] == event]
