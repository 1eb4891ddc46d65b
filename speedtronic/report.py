"""Records what happened in a run, and writes it to `report.json` and `report.md`."""

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from speedtronic.checkpoint import Pointer
from speedtronic.errors import CorruptError
from speedtronic.storage.regular_files import read_json, replace_text
from speedtronic.storage.strict_json import strict_json

REPORT_JSON = "report.json"
REPORT_MD = "report.md"

MAX_ROWS = 200  # of a table for people; report.json has them all

logger = logging.getLogger(__name__)


@dataclass
class ChunkReport:
    """Records one chunk: what was planned, and how many attempts and how much time it took.

    Attributes:
        start, target: the steps planned.
        trained_to: the step reached; None while it is not finished.
        attempts: tries, the successful one included.
        failures: how each failed attempt ended, in order.
        elapsed_s: wall time, retries and their delays included.
        loss: mean loss of the chunk's last update.
        save_stall_s: seconds for which its saves held training, in all.
    """

    start: int
    target: int
    trained_to: int | None = None
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    loss: float | None = None
    save_stall_s: float = 0.0

    @property
    def signals(self) -> list[str]:
        """Return the names of the signals that ended attempts, in order."""
        return [name for text in self.failures for name in re.findall(r"\bSIG[A-Z0-9]+\b", text)]


@dataclass
class RunReport:
    """Records a flow run from its first restore to its last chunk.

    Attributes:
        name, output_dir: of the run, as configured.
        start_step: where the newest good checkpoint was; 0 for a fresh run.
        target_step: `max(start_step, requested)`.
        trained_to: the step reached; beyond `pointer.step` when it is off the interval.
        pointer: the newest checkpoint; None if none was due yet.
        samples, tokens: since the run began.
        loss: mean loss of the last update; None before the first one.
        val_loss: the newest validation loss; None before the first.
        notes: what differs from when the run was begun or last saved.
        chunks: in order.
        flow_run: id of the flow run.
        restores: the steps at which state was loaded from disk, the start included, in order.
        checkpoints: `step`, `file` and `digest` of what was in the store at the end.
        earlier_chunks, earlier_restores: the same of the flow runs before this one.
    """

    name: str
    output_dir: str
    start_step: int
    target_step: int
    trained_to: int
    pointer: Pointer | None
    samples: int = 0
    tokens: int = 0
    loss: float | None = None
    val_loss: float | None = None
    notes: list[str] = field(default_factory=list)
    chunks: list[ChunkReport] = field(default_factory=list)
    restores: list[int] = field(default_factory=list)
    flow_run: str | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    earlier_chunks: list[ChunkReport] = field(default_factory=list)
    earlier_restores: list[int] = field(default_factory=list)

    @property
    def attempts(self) -> int:
        """Return the number of attempts of all chunks together."""
        return sum(chunk.attempts for chunk in self.chunks)

    @property
    def failures(self) -> list[str]:
        """Return how each failed attempt ended, in order."""
        return [failure for chunk in self.chunks for failure in chunk.failures]

    @property
    def all_chunks(self) -> list[ChunkReport]:
        """Return the chunks of this flow run and of those before it."""
        return self.earlier_chunks + self.chunks

    @property
    def restarts(self) -> list[int]:
        """Return the steps at which the run was loaded again, in order; its start is none."""
        return (self.earlier_restores + self.restores)[1:]

    def take_up(self, directory: Path) -> None:
        """Add the chunks and restores of earlier flow runs from `report.json` in `directory`.

        A report of another run is no part of this one's past; nor is one that cannot be read,
        which a warning says.
        """
        path = directory / REPORT_JSON
        try:
            former = read_json(path)
            chunks, restores = _CHUNKS.validate_python(former["chunks"]), former["restores"]
            run_id = former["run_id"]
            _STEPS.validate_python(restores)
        except FileNotFoundError:
            return
        except (OSError, CorruptError, ValueError, LookupError) as error:
            said = str(error).splitlines()[0]  # pydantic's second line says where
            logger.warning("%s tells nothing of earlier flow runs: %s", path, said)
            return
        if run_id is None or (self.pointer and self.pointer.run_id == run_id):
            self.earlier_chunks, self.earlier_restores = chunks, restores

    def take_from_store(self, pointers: Sequence[Pointer]) -> None:
        """Update the report from the checkpoints in the store at the end, given newest first."""
        self.checkpoints = [
            {"step": pointer.step, "file": pointer.file, "digest": pointer.digest}
            for pointer in pointers
        ]
        newest = pointers[0] if pointers else None
        if newest and newest.step > self.trained_to:
            self.pointer, self.trained_to = newest, newest.step
            self.samples, self.tokens = newest.samples, newest.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON; `chunks` and `restores` are those of the whole run."""
        record = asdict(self) | {
            "run_id": self.pointer and self.pointer.run_id,
            "pointer": self.pointer and self.pointer.model_dump(),
            "chunks": [asdict(c) | {"signals": c.signals} for c in self.all_chunks],
            "restores": self.earlier_restores + self.restores,
            "restarts": self.restarts,
        }
        del record["earlier_chunks"], record["earlier_restores"]
        return record

    def to_markdown(self) -> str:
        """Format the report for people: progress, failures, and the chunks as a table."""
        lines = [
            f"# {self.name}: step {self.trained_to} of {self.target_step}",
            "",
            f"- directory: `{self.output_dir}`",
            f"- trained on: {self.samples:,} samples, {self.tokens:,} tokens",
            f"- loss: {_number(self.loss)}, on held-out data: {_number(self.val_loss)}",
            f"- newest checkpoint: {self._checkpoint()}",
            f"- went on from disk: {_listed(self.restarts)}",
            *(f"- note: {note}" for note in self.notes),
            "",
        ]
        rows = self.rows()
        if rows:
            lines += ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
            lines += ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]
        for chunk in self.all_chunks[-MAX_ROWS:]:
            lines += [f"\nSteps {chunk.start}-{chunk.target}:\n"] if chunk.failures else []
            lines += [f"- {failure.splitlines()[0]}" for failure in chunk.failures if failure]
        return "\n".join(lines) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """Return the newest `MAX_ROWS` chunks as rows of a table for people, oldest first."""
        return [
            {
                "steps": f"{chunk.start}-{chunk.target}",
                "reached": "not yet" if chunk.trained_to is None else chunk.trained_to,
                "attempts": chunk.attempts,
                "signals": ", ".join(chunk.signals) or "none",
                "seconds": f"{chunk.elapsed_s:.1f}",
                "loss": _number(chunk.loss),
                "stall in saves": f"{chunk.save_stall_s:.3f} s",
            }
            for chunk in self.all_chunks[-MAX_ROWS:]
        ]

    def _checkpoint(self) -> str:
        if self.pointer is None:
            return "none"
        return (
            f"step {self.pointer.step}, `{self.pointer.file}`, state `{self.pointer.state_digest}`"
        )


def write_report(report: RunReport, directory: Path) -> None:
    """Write `report.json` and `report.md`; a crash leaves each as it was or as it is now.

    Args:
        report: of the run.
        directory: of the run; it exists.

    Raises:
        OutputDirError, StorageError: one of them cannot be written.
    """
    text = strict_json(report.to_dict(), indent=1, ensure_ascii=False)
    replace_text(directory / REPORT_JSON, text + "\n")
    replace_text(directory / REPORT_MD, report.to_markdown())


_CHUNKS = TypeAdapter(list[ChunkReport])
_STEPS = TypeAdapter(list[int])


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _listed(steps: Sequence[int]) -> str:
    return f"at step {', '.join(map(str, steps))}" if steps else "never"
