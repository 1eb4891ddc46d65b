"""A chunk in a process of its own: the parent's side.

Whatever kills the training process (SIGKILL, out of memory, a segfault) becomes an exception here,
with the signal named. The process stays warm between chunks; after any failure it is killed,
reaped and started anew.
"""

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Self

from speedtronic.checkpoint import Pointer
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import WorkerDied, WorkerError, WorkerFailed, WorkerHung
from speedtronic.plan import Chunk
from speedtronic.suspicion import Suspicion

STOP_GRACE_S = 20.0  # Prefect sends SIGKILL 30 s after it asked a flow to end
POLL_S = 0.05
STOPPED = 128 + signal.SIGTERM  # the exit code after a stop in good order

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChunkResult:
    """How far a chunk got.

    Attributes:
        pointer: the newest checkpoint; None before the first.
        trained_to: the step reached; beyond `pointer.step` when it is off the interval.
        samples: consumed since the run began.
        tokens: trained on since the run began.
        loss: mean loss of the last update; None before the first one.
        val_loss: the newest validation loss; None before the first.
        notes: what differs from when the run was begun or last saved, for people.
        saves: checkpoints committed.
        save_stall_s: seconds for which these held training, in all.
        save_durable_s: seconds until one was durable, at most.
    """

    pointer: Pointer | None
    trained_to: int
    samples: int
    tokens: int
    loss: float | None
    val_loss: float | None
    notes: list[str]
    saves: int = 0
    save_stall_s: float = 0.0
    save_durable_s: float = 0.0


class ChunkWorker:
    """A training process that is given one chunk after another; a context manager.

    Args:
        config: of the run; it is always resumed.
        allow_changes: keys that may differ from the run's checkpoint.
        on_log: given each log line of the child as (level, logger's name, message); by default it
            is logged here under the same name.
        on_event: told of each other event of the child as it comes: see `chunk_process`.

    Attributes:
        failed_in_a_row: attempts that ended without a new checkpoint since the last one.
        restores: the steps at which a checkpoint, or a fresh start, was loaded, in order.
    """

    def __init__(
        self,
        config: SpeedtronicConfig,
        *,
        allow_changes: Sequence[str] = (),
        on_log: Callable[[int, str, str], None] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._config = config
        self._allow_changes = list(allow_changes)
        self._on_log = on_log or _log_here
        self._on_event = on_event
        self._process: subprocess.Popen[str] | None = None
        self._events: IO[bytes] | None = None
        self._unread = b""
        self._suspicion = Suspicion(config.chunk.quarantine_after)
        self.failed_in_a_row = 0
        self.restores: list[int] = []

    @property
    def pid(self) -> int | None:
        """The process at work or kept warm; None when there is none."""
        return self._process.pid if self._process else None

    def restore(self) -> Pointer | None:
        """Load the newest good checkpoint, mending the store on the way.

        Raises:
            WorkerError: as `train`.
        """
        return self._attempt({"command": "restore"}).pointer

    def train(self, chunk: Chunk, pointer: Pointer | None) -> ChunkResult:
        """Advance to `chunk.target` from `pointer`, or from the store where that differs.

        Raises:
            WorkerDied: the process ended; the message names the signal or exit code.
            WorkerHung: no new step for `chunk.hang_timeout_s`; the process was killed.
            WorkerFailed: the process reported an exception.
        """
        handed = pointer and pointer.model_dump()
        return self._attempt({"command": "train", "target": chunk.target, "pointer": handed})

    def close(self) -> None:
        """Ask the process to stop, wait for it a while, then kill it; returns once it is reaped."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                logger.warning("worker %d did not stop in %.0f s", process.pid, STOP_GRACE_S)
        self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, request: dict[str, Any]) -> ChunkResult:
        self.failed_in_a_row += 1  # until a checkpoint or the answer comes
        try:
            if self._process is None or self._process.poll() is not None:
                self._discard()
                self._start()
            self._send(request | {"reject": self._suspicion.verdict()})
            answer = self._await_answer()
        except (WorkerDied, WorkerHung, WorkerFailed) as error:
            self._discard()
            if _is_death(error):
                self._suspicion.died(str(error))
            raise
        self.failed_in_a_row = 0
        self._suspicion.committed()
        return ChunkResult(
            pointer=answer["pointer"] and Pointer.model_validate(answer["pointer"]),
            trained_to=answer["step"],
            samples=answer["samples"],
            tokens=answer["tokens"],
            loss=answer["loss"],
            val_loss=answer["val_loss"],
            notes=answer["notes"],
            saves=answer["saves"],
            save_stall_s=answer["save_stall_s"],
            save_durable_s=answer["save_durable_s"],
        )

    def _start(self) -> None:
        read_fd, write_fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "speedtronic.chunk_process",
                    str(write_fd),
                    str(os.getpid()),
                ],
                stdin=subprocess.PIPE,
                pass_fds=[write_fd],
                text=True,
            )
        finally:
            os.close(write_fd)
        self._events = os.fdopen(read_fd, "rb", buffering=0)
        self._unread = b""
        self._send({"config": self._config.to_dict(), "allow_changes": self._allow_changes})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def _await_answer(self) -> dict[str, Any]:
        """The `done` event. Death is seen by the exit code, not by the pipe's end, which loader
        workers of a dead process hold open for a while."""
        assert self._process is not None and self._events is not None
        timeout_s = self._config.chunk.hang_timeout_s
        last_progress, last_step = time.monotonic(), None
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            while True:
                exited = self._process.poll() is not None
                while selector.select(0 if exited else POLL_S):
                    events = self._read_events()
                    if events is None:
                        break
                    for event in events:
                        if event["event"] == "done":
                            return event
                        self._take(event)
                        if event["event"] in ("step", "restored") and event["step"] != last_step:
                            last_progress, last_step = time.monotonic(), event["step"]
                if exited:
                    raise self._died()
                if time.monotonic() - last_progress > timeout_s:
                    raise WorkerHung(
                        f"worker {self._process.pid} completed no step for {timeout_s:.0f} s "
                        f"(last step: {last_step}); killed. chunk.hang_timeout_s sets the limit"
                    )

    def _read_events(self) -> list[dict[str, Any]] | None:
        """The whole lines that have come; None once there will be no more."""
        assert self._events is not None
        data = self._events.read(1 << 16)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] == "log":
            self._on_log(event["level"], event["name"], event["message"])
        elif event["event"] == "failed":
            logger.debug("%s", event["traceback"])
            raise WorkerFailed(
                f"{event['kind']}: {event['message']}",
                kind=event["kind"],
                retryable=event["retryable"],
            )
        elif event["event"] == "saved":
            self.failed_in_a_row = 0
            self._suspicion.committed()
        elif event["event"] == "restored":
            self.restores.append(event["step"])
            self._suspicion.loaded(event["step"])
        if event["event"] != "log" and self._on_event is not None:
            self._on_event(event)

    def _died(self) -> WorkerDied:
        assert self._process is not None
        code = self._process.wait()
        return WorkerDied(f"worker {self._process.pid} {_death(code)}", on_request=code == STOPPED)

    def _discard(self) -> None:
        """Make sure that the process is dead and reaped, so that its lock is free."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._events):
            if stream is not None:
                with suppress(BrokenPipeError):  # a request that nobody will read
                    stream.close()
        self._process = self._events = None


def _log_here(level: int, name: str, message: str) -> None:
    logging.getLogger(name).log(level, "%s", message)


def _is_death(error: WorkerError) -> bool:
    """Whether the attempt ended as what it had loaded may have made it end."""
    if isinstance(error, WorkerDied):
        return not error.on_request
    return not isinstance(error, WorkerFailed) or error.retryable


def _death(code: int) -> str:
    if code == STOPPED:
        return "stopped on SIGTERM"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hints = {
        "SIGKILL": " (killed from outside, or out of memory: see dmesg)",
        "SIGSEGV": " (a crash in native code: its stack is on standard error)",
    }
    return f"was killed by {name}{hints.get(name, '')}"
