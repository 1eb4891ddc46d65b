"""The child's side of a chunk worker.

    python -m speedtronic.worker.chunk_main EVENTS_FD PARENT_PID

One JSON object a line: requests come on standard input, events go to the file descriptor given.

    requests  {"config": {...}, "allow_changes": [...], "target": 240 | null}  first, once
              {"command": "restore"}                     load the newest good checkpoint
              {"command": "train", "target": 40, "pointer": {...} | null}
              either with "reject": {"step": 20, "reason": ...} | null, set aside before loading
    events    {"event": "log", "level": 20, "name": ..., "message": ...}
              {"event": "restored" | "step" | "saved", "step": 20}
              {"event": "alive", "doing": "validating, batches: 7", "computing": false}  if new
              {"event": "done", "pointer": {...} | null, "step": 40, "loss": 2.3, "samples": ...,
               "saves": 2, "save_stall_s": 0.1, "save_durable_s": 0.9}
              {"event": "failed", "kind": ..., "message": ..., "retryable": false}

It holds the run's lock, and ends at once when its parent does. SIGTERM and SIGHUP end it after the
update at hand, saving first with `checkpoint.save_on_stop`; SIGUSR1 saves and goes on.
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
from typing import IO, Any

from speedtronic import liveness
from speedtronic.checkpoint import Pointer
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

STEP_EVENT_EVERY_S = 0.2
ALIVE_EVENT_EVERY_S = 0.2

logger = logging.getLogger("speedtronic.worker.chunk_main")  # __name__ may be __main__ here


class Events:
    """Lines to the parent. If it is gone this process ends as well: the parent never closes
    its side before."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._sending = threading.Lock()

    def send(self, event: str, **fields: Any) -> None:
        try:
            with self._sending:
                self._stream.write(json.dumps({"event": event, **fields}) + "\n")
                self._stream.flush()
        except BrokenPipeError:
            end_as_orphan()


def _tell_of_life(events: Events) -> None:
    """Pass on, a few times a second, what `liveness` has heard, if that is something new."""
    told, never = None, threading.Event()
    while not never.wait(ALIVE_EVENT_EVERY_S):
        sign = liveness.current_activity()
        if sign != told:
            events.send("alive", doing=sign.doing, computing=sign.computing)
        told = sign


class _LogToEvents(logging.Handler):
    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        message = self.format(record)
        self._events.send("log", level=record.levelno, name=record.name, message=message)


class ChunkProcess:
    """A run kept warm between chunks.

    Args:
        config: of the run; it is always resumed.
        allow_changes: keys that may differ from the run's checkpoint.
        target: step to which all chunks together train; None means `run.max_steps`.
        events: to the parent.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        allow_changes: list[str],
        target: int | None,
        events: Events,
    ) -> None:
        self._config = config
        self._allow_changes = allow_changes
        self._target = target
        self._events = events
        self._runtime: Runtime | None = None
        self._progress: PlainProgress | None = None
        self._last_step_event = 0.0
        self._saves_told = 0
        self._reject: dict[str, Any] | None = None
        self._training = False
        self._stop_requested = False
        self._on_save = SaveSignal()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_save)
        unblock_signals()

    def handle(self, request: dict[str, Any]) -> None:
        """Answer one request with `done` or `failed`."""
        self._reject = request["reject"]
        if request["command"] == "restore":
            self._load()
            self._done()
            return
        pointer = request["pointer"] and Pointer.model_validate(request["pointer"])
        runtime = self._runtime
        liveness.report_progress("comparing the state with the checkpoint", computing=True)
        if runtime is None or not runtime.proves(pointer):
            runtime = self._load()
            # A newer one than the pointer's is what an attempt before this one has committed.
            if pointer and runtime.pointer != pointer and runtime.state.step <= pointer.step:
                logger.warning(
                    "the checkpoint handed on (step %d, %s) is not in the store; going on from "
                    "step %d",
                    pointer.step,
                    pointer.digest,
                    runtime.state.step,
                )
        self._train(runtime, request["target"])
        self._done()

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Told of what happens in training."""
        if event == "checkpoint_saved":
            self._events.send("saved", step=payload["step"])
        elif self._progress is not None:
            self._progress.on_event(event, payload)

    def on_step(self, step: int) -> None:
        """Told of every update; the parent hears of it a few times a second."""
        now = time.monotonic()
        if now - self._last_step_event >= STEP_EVENT_EVERY_S:
            self._last_step_event = now
            self._events.send("step", step=step)

    def close(self) -> None:
        """Let go of the run."""
        if self._runtime is not None:
            self._runtime.close()
            self._runtime = None

    def _load(self) -> Runtime:
        self.close()
        self._saves_told = 0
        liveness.report_progress("building the run", computing=True)
        self._runtime = build_runtime(
            self._config,
            resume=True,
            allow_changes=self._allow_changes,
            target=self._target,
            hooks=[self],
            reject=(self._reject["step"], self._reject["reason"]) if self._reject else None,
            on_step=self.on_step,
        )
        self._on_save.attach(self._runtime.trainer)
        self._events.send("restored", step=self._runtime.state.step)
        return self._runtime

    def _train(self, runtime: Runtime, target: int) -> None:
        self._progress = PlainProgress(target, logger)
        self._training = True
        try:
            if not self._stop_requested:
                runtime.train(target)
        finally:
            self._training = False
        if self._stop_requested:
            raise SystemExit(128 + signal.SIGTERM)

    def _done(self) -> None:
        assert self._runtime is not None
        state, pointer = self._runtime.state, self._runtime.pointer
        saves = self._runtime.saves[self._saves_told :]
        self._saves_told += len(saves)
        self._events.send(
            "done",
            pointer=pointer and pointer.model_dump(),
            step=state.step,
            samples=state.samples,
            tokens=state.tokens,
            loss=state.loss,
            val_loss=state.val_loss,
            notes=self._runtime.notes,
            saves=len(saves),
            save_stall_s=sum(saved.stall_s for saved in saves),
            save_durable_s=max((saved.durable_s for saved in saves), default=0.0),
        )

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        if self._stop_requested:  # by the process group and by the parent; SIGKILL is theirs too
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
        events = Events(stream)
        threading.Thread(target=_tell_of_life, args=(events,), daemon=True).start()
        try:
            _serve(events)
        except Exception as error:
            events.send(
                "failed",
                kind=type(error).__name__,
                message=scrub(str(error)),
                retryable=_retryable(error),
                traceback=scrub(traceback.format_exc()),
            )
            raise SystemExit(1) from None


def _serve(events: Events) -> None:
    first = json.loads(sys.stdin.readline())
    config = SpeedtronicConfig.from_dict(first["config"])
    file = logging_path(config, config.logging.file)
    configure_logging(config.logging.level, file, _LogToEvents(events))
    process = ChunkProcess(config, first["allow_changes"], first["target"], events)
    try:
        for line in iter(sys.stdin.readline, ""):
            process.handle(json.loads(line))
        end_as_orphan()  # the input ends with the parent, never before
    finally:
        process.close()


def _retryable(error: Exception) -> bool:
    """Whether the same attempt could end otherwise: not where a person has to mend something."""
    if isinstance(error, StorageError):
        return True
    return not isinstance(error, UsageError | CheckpointError | NonFiniteError)


if __name__ == "__main__":
    main()
