"""Shows the progress of a run: log lines, and a bar on a terminal."""

import logging
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from speedtronic.redaction import scrub
from speedtronic.storage.regular_files import open_to_append

PACKAGE = "speedtronic"
LINE_EVERY_S = 2.0


def configure_logging(level: str, file: Path | None, *handlers: logging.Handler) -> None:
    """Send the package's log records to `handlers`, and to `file` if one is given.

    The file is opened at the first record: a run that is refused before leaves none behind.
    """
    logger = logging.getLogger(PACKAGE)
    logger.setLevel(level)
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    outputs = list(handlers)
    if file is not None:
        to_file = _LogFile(file, encoding="utf-8", delay=True)
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        outputs.append(to_file)
    for handler in outputs:
        handler.addFilter(_without_secrets)  # a logger's own filter sees no record of its children
        logger.addHandler(handler)


def _without_secrets(record: logging.LogRecord) -> bool:
    """Scrub a record before it is written."""
    record.msg, record.args = scrub(record.getMessage()), None
    if record.exc_info and not record.exc_text:
        record.exc_text = scrub(logging.Formatter().formatException(record.exc_info))
    return True


class _LogFile(logging.FileHandler):
    """Appends to a log file, never through a link; after a failed write it warns once and stops."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError as error:  # it cannot be opened
            self._give_up(str(error))

    def _open(self) -> TextIOWrapper:
        return os.fdopen(open_to_append(Path(self.baseFilename)), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            self._give_up(f"cannot write {self.baseFilename}: {error.strerror or error}")
        else:
            super().handleError(record)

    def _give_up(self, why: str) -> None:
        self.setLevel(sys.maxsize)
        print(f"speedtronic: {why}; messages go on elsewhere", file=sys.stderr)


def terminal_handler() -> logging.Handler:
    """Return a handler that writes plain log lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    return handler


def describe(payload: dict[str, Any], target: int) -> str:
    """Return a line such as `step 40/240  loss 2.3456  lr 1.0e-03  51,234 tokens/s`."""
    return (
        f"step {payload['step']}/{target}  loss {payload['loss']:.4f}  lr {payload['lr']:.1e}  "
        f"{payload['tokens_per_s']:,.0f} tokens/s"
    )


class PlainProgress:
    """Logs a line every few seconds, and one at the target step."""

    def __init__(self, target: int, logger: logging.Logger) -> None:
        self._target = target
        self._logger = logger
        self._last_line = 0.0

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        now = time.monotonic()
        due = now - self._last_line >= LINE_EVERY_S or payload.get("step") == self._target
        if event == "train_step" and due:
            self._last_line = now
            self._logger.info("%s", describe(payload, self._target))


class ProgressBar:
    """Shows a bar with the loss on a terminal; a context manager."""

    def __init__(self, target: int, console: Console) -> None:
        self._target = target
        self._progress = Progress(
            TextColumn("[bold]step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task: TaskID = self._progress.add_task("train", total=target, figures="")

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        if event == "train_step":
            figures = describe(payload, self._target).split("  ", 1)[1]
            self._progress.update(self._task, completed=payload["step"], figures=figures)

    def on_step(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
