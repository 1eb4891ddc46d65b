"""Write metrics as JSON lines, without duplicates or gaps however often a run is interrupted."""

import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from speedtronic.errors import OutputDirError
from speedtronic.storage.regular_files import (
    disk_errors,
    open_to_append,
    open_to_read,
    refuse_other_kinds,
    replace,
    storage_error,
    sync_directory,
)
from speedtronic.storage.strict_json import strict_json

MAX_LINE_BYTES = 2**20  # what is longer is no line of ours, and is read in pieces
NUM_FIRST_LINES = 20  # one of which is ours where the file is

_BEGINS = b'{"event": "'
# As our lines begin, so that most of them need no parser.
_OURS = re.compile(rb'\{"event": "[^"\\]*", "step": (\d{1,18})[,}]')


SCALARS = ("loss", "lr", "tokens_per_s", "val_loss")


class Hook(Protocol):
    """Receives training events as they happen, in the training thread."""

    def on_event(self, event: str, payload: dict[str, Any]) -> None: ...


class JsonLines:
    """Writes events to a file, one JSON object a line, in the order of their `step`.

    Lines up to S are on disk before checkpoint S commits (`sync`), and restoring S drops later
    ones (`rewind`); so after any crash the file reads as that of an uninterrupted run. A number
    that is not finite is written as null. A line that is not ours stays where it is.

    Raises:
        OutputDirError: it is somebody else's file, or cannot be written; nothing was changed.
        StorageError: the disk or the machine refused; from any method.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(f"cannot write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign_lines(path)
        self._descriptor = open_to_append(path)

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Append a line. The kernel has it on return: a killed process loses none."""
        line = (strict_json({"event": event, **payload}) + "\n").encode()
        written = 0
        try:
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            with suppress(OSError):  # the next line must not go on where this one was cut short
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
            raise storage_error(f"cannot write {self._path}", error) from error

    def sync(self) -> None:
        """Flush the lines so far to disk (fsync); may be called from any thread."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise storage_error(f"cannot write {self._path}", error) from error

    def rewind(self, step: int) -> None:
        """Drop our lines after `step`, and the rest of a line that a crash cut short.

        Where a run starts at step 0 and the file tells of checkpoints, it is of another run or of
        checkpoints that were taken away: it is kept beside as `<name>.before-1`, `-2` and so on.
        """
        with disk_errors(f"cannot rewind {self._path}"):
            with open_to_read(self._path) as file:
                survey = _Survey(file, step)
            if survey.cut_a_save and step == 0:
                self._set_aside()
            elif survey.keeps_after_cut:
                with open_to_read(self._path) as file:
                    replace(self._path, _kept(file, step))
            elif survey.cut_at is not None:
                os.truncate(self._path, survey.cut_at)
            os.close(self._descriptor)
            self._descriptor = open_to_append(self._path)
            if survey.lacks_newline:
                os.write(self._descriptor, b"\n")

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):  # every line was written before
            os.close(descriptor)

    def _set_aside(self) -> None:
        for number in itertools.count(1):
            beside = self._path.with_name(f"{self._path.name}.before-{number}")
            if not os.path.lexists(beside):
                self._path.rename(beside)
                sync_directory(beside.parent)
                return


class _Survey:
    """Plan a rewind to `step`.

    Attributes:
        cut_at: where the first line to be dropped begins; None if there is none.
        keeps_after_cut: whether a line that stays stands after one that goes.
        cut_a_save: whether a line to be dropped tells of a checkpoint.
        lacks_newline: whether the file ends in the middle of a line that is not ours.
    """

    def __init__(self, file: BinaryIO, step: int) -> None:
        self.cut_at: int | None = None
        self.keeps_after_cut = self.cut_a_save = self.lacks_newline = False
        at = 0
        for line, goes in _judged(file, step):
            if not goes:
                self.keeps_after_cut = self.cut_at is not None
            elif self.cut_at is None:
                self.cut_at = at
            self.cut_a_save |= goes and line.startswith(b'{"event": "checkpoint_saved"')
            self.lacks_newline = not goes and not line.endswith(b"\n")
            at += len(line)


def refuse_foreign_lines(path: Path) -> None:
    """Refuse a file at `path` whose first lines are not ours.

    Raises:
        OutputDirError: it is somebody else's; nothing was changed.
    """
    refuse_other_kinds(path)
    try:
        with open_to_read(path) as file, disk_errors(f"cannot read {path}"):
            lines = [line for line, _ in itertools.islice(_lines(file), NUM_FIRST_LINES)]
    except FileNotFoundError:
        return
    written = [line for line in lines if line.strip(b"\0 \t\r\n")]
    ours = any(_step(line) is not None or _is_torn(line[: len(_BEGINS)]) for line in written)
    if written and not ours:
        raise OutputDirError(
            f"{path} is there and does not hold metrics of a run; it is unchanged: move it away, "
            "or name another file as logging.json_file"
        )


def read_events(path: Path, event: str) -> list[dict[str, Any]]:
    """Read the recorded events of one kind, oldest first; none if there is no file.

    Lines that are not ours are passed over.

    Raises:
        CorruptError: it is no regular file.
    """
    named = json.dumps(event).encode()
    events = []
    try:
        with open_to_read(path) as file:
            for line, _ in _lines(file):
                record = _record(line) if named in line and line.endswith(b"\n") else {}
                if record.get("event") == event:
                    events.append(record)
    except FileNotFoundError:
        return []
    return events


def _kept(file: BinaryIO, step: int) -> Iterator[bytes]:
    return (line for line, goes in _judged(file, step) if not goes)


def _judged(file: BinaryIO, step: int) -> Iterator[tuple[bytes, bool]]:
    """Yield each line, and whether a rewind to `step` drops it."""
    for line, begins in _lines(file):
        if begins and line.endswith(b"\n"):
            found = _step(line)
            yield line, found is not None and found > step
        else:
            yield line, begins and len(line) < MAX_LINE_BYTES and _is_torn(line)


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a file; one too long in pieces, only the first marked as a beginning."""
    begins = True
    while line := file.readline(MAX_LINE_BYTES):
        yield line, begins
        begins = line.endswith(b"\n")


def _is_torn(line: bytes) -> bool:
    """Whether a text may be what a crash left of our line: its beginning, or zeros."""
    return line.startswith(_BEGINS) or _BEGINS.startswith(line.rstrip(b"\0"))


def _step(line: bytes) -> int | None:
    """Return the step of our line; None for any other line."""
    if (match := _OURS.match(line)) and line.endswith(b"}\n"):
        return int(match.group(1))
    record = _record(line)
    step = record.get("step")
    return step if type(step) is int and isinstance(record.get("event"), str) else None


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def scalar_fields(fields: dict[str, Any]) -> dict[str, float]:
    """Return those of an event's fields that are drawn as curves, without the missing ones."""
    return {name: fields[name] for name in SCALARS if fields.get(name) is not None}
