"""Writes metrics for Weights & Biases, offline."""

import os
import secrets
from pathlib import Path
from typing import Any

from speedtronic.storage.regular_files import read_json, replace_text
from speedtronic.storage.strict_json import strict_json
from speedtronic.training.metrics import JsonLines, read_events, scalar_fields


class WandbOffline:
    """Logs to Weights & Biases offline, in `<output_dir>/wandb`; `wandb sync` uploads it.

    One id for the whole run; each process that trains writes a segment, `offline-run-*-<id>`. It
    can be neither rewound nor read back, and a killed process takes the last seconds of it along.
    So that each step is in exactly one segment, wherever the process was killed:

    - `wandb-rows.jsonl` holds every row, rewound like the metrics file when a run resumes;
    - `wandb-run.json` holds the id, the highest step in finished segments, and the name of the
      open segment. It is written after the segment is opened, and again after it is finished.
    - A start that finds a segment still open moves it to `wandb/unfinished` and logs its rows up
      to the checkpoint again, from the file. Those after it come again from training.
    - Steps in finished segments are not logged again, which loses nothing: a resumed run repeats
      them to the bit. A run that starts at step 0 has nothing to go on with, and gets a new id.
    """

    def __init__(self, output_dir: Path) -> None:
        self._folder = output_dir
        self._record_path = output_dir / "wandb-run.json"
        self._started: dict[str, Any] = {}
        self._record: dict[str, Any] = {}
        self._rows: JsonLines | None = None
        self._run: Any = None

    def on_event(self, event: str, payload: dict[str, Any]) -> None:
        """Log rows; the first one opens a segment, so a run that trains nothing leaves none."""
        if event == "run_started":
            self._started = payload
            if self._read_record().get("open_segment"):
                self._open()  # what a killed process took along may be missing even if none follow
        elif event in ("train_step", "validation"):
            if self._run is None:
                self._open()
            assert self._rows is not None
            row = {"step": payload["step"], "values": scalar_fields(payload)}
            self._rows.on_event("row", row)
            self._log(row)
        elif event == "checkpoint_saved" and self._rows:
            self._rows.sync()
        elif event == "run_ended" and self._run:
            self._close(payload["step"])

    def _log(self, row: dict[str, Any]) -> None:
        if row["step"] > self._record["finished_step"]:
            self._run.log(row["values"], step=row["step"])

    def _open(self) -> None:
        import wandb  # over half a second to import

        step, config = self._started["step"], self._started["config"]
        rows = self._folder / "wandb-rows.jsonl"
        before = self._read_record()
        self._set_aside(before.get("open_segment"))
        fresh: dict[str, Any] = {"id": secrets.token_hex(4), "finished_step": 0}
        self._record = before if before and step > 0 else fresh
        self._rows = JsonLines(rows)
        self._rows.rewind(step)
        if f"-{os.getpid()}-" not in os.environ.get("WANDB_SERVICE", ""):
            os.environ.pop("WANDB_SERVICE", None)  # a parent's still holds a killed process's id
        self._run = wandb.init(
            project="speedtronic",
            name=config["run"]["name"],
            id=self._record["id"],
            config=config,
            dir=str(self._folder),
            mode="offline",
            resume="allow",
            reinit="create_new",  # leaves alone a run that the caller's own code may have open
            settings=wandb.Settings(console="off", silent=True),
        )
        self._write_record(open_segment=Path(self._run.dir).parent.name)
        for row in read_events(rows, "row"):
            self._log({**row, "values": scalar_fields(row["values"])})

    def _close(self, step: int) -> None:
        assert self._rows is not None
        self._run.finish()
        step = max(step, self._record["finished_step"])
        self._write_record(open_segment=None, finished_step=step)
        self._rows.close()
        self._run = self._rows = None

    def _set_aside(self, segment: str | None) -> None:
        folder = self._folder / "wandb"
        if segment and (folder / segment).exists():
            (folder / "unfinished").mkdir(exist_ok=True)
            (folder / segment).rename(folder / "unfinished" / segment)

    def _read_record(self) -> dict[str, Any]:
        try:
            return read_json(self._record_path)
        except FileNotFoundError:
            return {}

    def _write_record(self, **changes: Any) -> None:
        self._record = {**self._record, **changes}
        replace_text(self._record_path, strict_json(self._record))
