"""Runs in the training child: serves the requests of a `ChunkWorker`.

    python -m speedtronic.worker.chunk_main EVENTS_FD PARENT_PID

Requests come on standard input, events go to the file descriptor; `worker.messages` defines both.
The process holds the run's lock and ends at once when its parent does. SIGTERM and SIGHUP end it
after the update at hand, and save first with `checkpoint.save_on_stop`. SIGUSR1 saves, and training
goes on.
"""

import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from speedtronic import liveness
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import CheckpointError, NonFiniteError, StorageError, UsageError
from speedtronic.liveness import end_as_orphan, end_with_parent
from speedtronic.redaction import scrub
from speedtronic.run_directory import logging_path
from speedtronic.runtime import build_runtime
from speedtronic.runtime.progress import PlainProgress, configure_logging
from speedtronic.runtime.runtime import Runtime
from speedtronic.runtime.signals import SaveSignal
from speedtronic.shutdown import unblock_signals
from speedtronic.training.state import TrainState
from speedtronic.training.trainer import TrainResult
from speedtronic.worker.event_stream import EventStream, LogToEvents, report_activity
from speedtronic.worker.messages import (
    Done,
    Failed,
    Rejection,
    Request,
    Restore,
    Restored,
    Saved,
    Setup,
    StepReached,
    parse_request,
)

STEP_EVENT_EVERY_S = 0.2

logger = logging.getLogger("speedtronic.worker.chunk_main")  # __name__ may be __main__ here


class ChunkProcess:
    """Keeps a run in memory between chunks and answers requests about it.

    Args:
        config: of the run; it is always resumed.
        setup: what to train; see `Setup`.
        events: to the parent.
    """

    def __init__(self, config: SpeedtronicConfig, setup: Setup, events: EventStream) -> None:
        self._config = config
        self._setup = setup
        self._events = events
        self._runtime: Runtime | None = None
        self._progress: PlainProgress | None = None
        self._last_step_event = 0.0
        self._training = False
        self._stop_requested = False
        self._on_save = SaveSignal()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_save)
        unblock_signals()

    def handle(self, request: Request) -> None:
        """Carry out one request and answer it with `Done`."""
        if isinstance(request, Restore):
            runtime = self._load(request.reject)
            self._done(runtime, _result_so_far(runtime.state))
            return
        pointer = request.pointer
        liveness.report_progress("comparing the state with the checkpoint", computing=True)
        if self._runtime is not None and self._runtime.matches(pointer):
            runtime = self._runtime
        else:
            runtime = self._load(request.reject)
            # A newer one than the pointer's is what an attempt before this one has committed.
            if pointer and runtime.pointer != pointer and runtime.state.step <= pointer.step:
                logger.warning(
                    "the checkpoint handed on (step %d, %s) is not in the store; going on from "
                    "step %d",
                    pointer.step,
                    pointer.digest,
                    runtime.state.step,
                )
        self._done(runtime, self._train(runtime, request.target))

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Pass on a training event; this is a hook of the trainer."""
        if event == "checkpoint_saved":
            self._events.send(Saved(payload["step"]))
        elif self._progress is not None:
            self._progress.on_event(event, payload)

    def on_step(self, step: int) -> None:
        """Send `StepReached` a few times a second; called after each update."""
        now = time.monotonic()
        if now - self._last_step_event >= STEP_EVENT_EVERY_S:
            self._last_step_event = now
            self._events.send(StepReached(step))

    def close(self) -> None:
        """Close the run and release its lock."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def _load(self, reject: Rejection | None) -> Runtime:
        self.close()
        liveness.report_progress("building the run", computing=True)
        self._runtime = build_runtime(
            self._config,
            resume=True,
            allow_changes=self._setup.allow_changes,
            target=self._setup.target,
            hooks=[self],
            reject=(reject.step, reject.reason) if reject else None,
            on_step=self.on_step,
        )
        self._on_save.attach(self._runtime.trainer)
        self._events.send(Restored(self._runtime.state.step))
        return self._runtime

    def _train(self, runtime: Runtime, target: int) -> TrainResult:
        self._progress = PlainProgress(target, logger)
        self._training = True
        try:
            if self._stop_requested:
                raise SystemExit(128 + signal.SIGTERM)
            result = runtime.train(target)
        finally:
            self._training = False
        if self._stop_requested:
            raise SystemExit(128 + signal.SIGTERM)
        return result

    def _done(self, runtime: Runtime, result: TrainResult) -> None:
        self._events.send(Done(result, runtime.pointer, runtime.notes))

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop_requested:  # it may come from the process group and from the parent
            return
        self._stop_requested = True
        if not self._training or self._runtime is None:
            raise SystemExit(128 + signal.SIGTERM)
        self._runtime.trainer.request_stop()


def main() -> None:
    """Serve requests until the parent is gone."""
    serve(int(sys.argv[1]), partial(end_with_parent, int(sys.argv[2])))


def serve(events_fd: int, watch_parent: Callable[[], None]) -> None:
    """Serve requests from standard input.

    Args:
        events_fd: where the events go.
        watch_parent: lets this process end as soon as the one that sends the requests has ended.
    """
    faulthandler.enable()  # a segfault leaves a Python stack on standard error
    watch_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    os.set_inheritable(events_fd, False)
    with os.fdopen(events_fd, "w", encoding="utf-8") as stream:
        events = EventStream(stream)
        threading.Thread(target=report_activity, args=(events,), daemon=True).start()
        try:
            _answer_requests(events)
        except Exception as error:
            kind, message = type(error).__name__, scrub(str(error))
            trace = scrub(traceback.format_exc())
            events.send(Failed(kind, message, _retryable(error), trace))
            raise SystemExit(1) from None


def _answer_requests(events: EventStream) -> None:
    setup = Setup(**json.loads(sys.stdin.readline()))
    config = SpeedtronicConfig.from_dict(setup.config)
    file = logging_path(config, config.logging.file)
    configure_logging(config.logging.level, file, LogToEvents(events))
    process = ChunkProcess(config, setup, events)
    try:
        for line in iter(sys.stdin.readline, ""):
            process.handle(parse_request(line))
        end_as_orphan()  # standard input closes when the parent ends, never before
    finally:
        process.close()


def _result_so_far(state: TrainState) -> TrainResult:
    """Describe a state that was loaded and not trained since."""
    return TrainResult(
        steps=state.step,
        samples=state.samples,
        tokens=state.tokens,
        final_loss=state.loss,
        skipped_updates=state.skipped_updates,
        elapsed_s=0.0,
        metrics={} if state.val_loss is None else {"val_loss": state.val_loss},
    )


def _retryable(error: Exception) -> bool:
    """Return whether the same attempt could succeed without a person changing anything."""
    if isinstance(error, StorageError):
        return True
    return not isinstance(error, UsageError | CheckpointError | NonFiniteError)


if __name__ == "__main__":
    main()
