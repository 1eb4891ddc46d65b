"""Shows a run: as artifacts in Prefect, and as files in the run's directory.

    progress-<run>   how far it is                          (progress)
    chunks-<run>     what each chunk took     report.json, report.md  (table)
    loss-<run>       the loss, and where it was restarted   loss.png  (image)

It must not harm or slow the run: a failure is logged and tried again later, updates take at most a
hundredth of the time, and tables and images get a new version at most every 10 minutes.
"""

import base64
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import (
    create_image_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from speedtronic.checkpoint import Pointer, open_storage
from speedtronic.checkpoint.candidates import candidates
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import CheckpointError
from speedtronic.flows.keys import slug
from speedtronic.flows.server_absence import server_answers
from speedtronic.plot import plot_losses
from speedtronic.report import RunReport, write_report
from speedtronic.run_directory import logging_path
from speedtronic.storage.regular_files import read_bytes
from speedtronic.storage.urls import local_path
from speedtronic.training.metrics import read_events

LOSS_PNG = "loss.png"
SHARE = 0.01  # of the time, at most
UPDATE_S = 10.0  # every update is an event in Prefect, and a line of `--watch`
VERSION_S = 600.0  # tables and images have no update: each is one more in the list


class Throttled:
    """Limits how often an action runs: at most every `least_s`, for at most `SHARE` of the time."""

    def __init__(self, action: Callable[[], None], least_s: float) -> None:
        self._action = action
        self._least_s = least_s
        self._next = 0.0

    def __call__(self) -> None:
        """Run the action if it is due."""
        started = time.monotonic()
        if started >= self._next:
            self._action()
            ended = time.monotonic()
            self._next = ended + max((ended - started) / SHARE, self._least_s)


class RunView:
    """Shows one run from its first restore to its end, also after an error; a context manager."""

    def __init__(self, settings: SpeedtronicConfig) -> None:
        self._settings = settings
        self._directory = local_path(settings.run.output_dir)
        self._key = slug(settings.run.output_dir)
        self._report: RunReport | None = None
        self._step = 0
        self._progress_id: UUID | None = None
        self._progress = Throttled(self._show_progress, UPDATE_S)
        self._chunks = Throttled(self._show_chunks, VERSION_S)
        self._files = Throttled(self._write_files, UPDATE_S)
        self._loss = Throttled(self._show_loss, VERSION_S)

    def begin(self, report: RunReport) -> None:
        """Show `report` from now on, which the flow keeps up to date."""
        self._report = report
        self._step = report.start_step
        self._files()
        self._progress()

    def step_reached(self, step: int) -> None:
        """Show that training has reached `step`."""
        if self._report is not None:
            self._step = step
            self._progress()

    def chunk_ended(self) -> None:
        """Show the report, which has one more chunk."""
        assert self._report is not None
        self._step = self._report.trained_to
        for show in (self._files, self._progress, self._chunks, self._loss):
            show()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._report is None:
            return
        # A flow that is ended hears no more of its worker, which may have saved on the way out.
        with harmless("end of the store"):
            self._report.take_from_store(_pointers(self._settings))
        self._step = self._report.trained_to
        self._write_files()
        self._show_progress()
        self._show_chunks()
        if kind is None or issubclass(kind, Exception):  # being ended leaves no time for a picture
            self._show_loss()

    def _show_progress(self) -> None:
        report = self._report
        assert report is not None
        target = report.target_step
        if not server_answers():
            return
        percent = 100.0 * self._step / target
        said = f"{report.name}: step {self._step} of {target}"
        with harmless("progress"):
            if self._progress_id is None:
                key = f"progress-{self._key}"
                made = create_progress_artifact(percent, key=key, description=said)
                assert isinstance(made, UUID)  # a coroutine only where there is an event loop
                self._progress_id = made
            else:
                update_progress_artifact(self._progress_id, percent, description=said)

    def _show_chunks(self) -> None:
        report = self._report
        assert report is not None
        if report.all_chunks and server_answers():
            said = f"{report.name}: the chunks up to step {report.trained_to}"
            with harmless("table of chunks"):
                create_table_artifact(report.rows(), key=f"chunks-{self._key}", description=said)

    def _show_loss(self) -> None:
        report = self._report
        assert report is not None
        metrics = logging_path(self._settings, self._settings.logging.json_file)
        if metrics is None:
            return
        with harmless("loss curve"):
            events = [e for e in read_events(metrics, "train_step") if e["loss"] is not None]
            if not events:
                return
            name, restarts = report.name, report.restarts
            path = self._directory / LOSS_PNG
            plot_losses(
                path,
                {"training": events},
                marks={"training": restarts},
                marked="went on from disk",
                validation=read_events(metrics, "validation"),
                title=f"{name}: {_times(len(restarts))}",
            )
            if not server_answers():
                return
            encoded = base64.b64encode(read_bytes(path)).decode()
            create_image_artifact(
                f"data:image/png;base64,{encoded}",
                key=f"loss-{self._key}",
                description=f"{name}: the loss up to step {events[-1]['step']}",
            )

    def _write_files(self) -> None:
        assert self._report is not None
        with harmless("report"):
            write_report(self._report, self._directory)


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """Turn an exception into a warning that `what` could not be shown; the run goes on."""
    try:
        yield
    except Exception as error:
        get_run_logger().warning("cannot show the %s: %s: %s", what, type(error).__name__, error)


def _pointers(settings: SpeedtronicConfig) -> list[Pointer]:
    """Return the pointer to each checkpoint in the store, newest first."""
    found = []
    for candidate in candidates(open_storage(settings.checkpoint_dir)):
        with suppress(CheckpointError):  # for the next restore to judge
            found.append(candidate.manifest.pointer())
    return found


def _times(restarts: int) -> str:
    return {0: "in one go", 1: "went on from disk once"}.get(
        restarts, f"went on from disk {restarts} times"
    )
