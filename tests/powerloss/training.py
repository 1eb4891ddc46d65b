"""The process that trains while its disk is logged; it notes what it was promised.

    python -m tests.powerloss.training CONFIG NOTES [no-fsync | no-directory-fsync]

A line to `notes` for each: {"saving": step, "state_digest": ...} before a save, {"saved": ...} once
`save` has returned, in whichever thread, and {"reported": trained_to} once the report is written.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import CheckpointStore, Pointer
from speedtronic.checkpoint.digest import state_digest
from speedtronic.report import RunReport, write_report
from speedtronic.runtime import build_runtime
from speedtronic.storage.local import LocalStorage


def train(config: SpeedtronicConfig, notes: int) -> None:
    """Train in two chunks, with a report after each, as the flow does."""

    def note(**what: Any) -> None:
        os.write(notes, json.dumps(what).encode())

    _note_saves(note)
    with build_runtime(config, resume=True) as runtime:
        for target in (config.run.max_steps // 2, config.run.max_steps):
            runtime.train(target)
            report = RunReport(
                name=config.run.name,
                output_dir=config.run.output_dir,
                start_step=0,
                target_step=config.run.max_steps,
                trained_to=runtime.state.step,
                pointer=runtime.pointer,
            )
            write_report(report, Path(config.run.output_dir))
            note(reported=runtime.state.step)


def _note_saves(note: Any) -> None:
    save = CheckpointStore.save

    def noted(store: CheckpointStore, state: dict[str, Any]) -> Pointer:
        note(saving=state["step"], state_digest=state_digest(state))
        pointer = save(store, state)
        note(saved=pointer.step, state_digest=pointer.state_digest)
        return pointer

    CheckpointStore.save = noted  # type: ignore[method-assign]


def _break(promise: str) -> None:
    """Leave one thing out of what makes a save durable."""
    if promise == "no-fsync":
        LocalStorage.sync = lambda self, file: file.flush()  # type: ignore[method-assign]
    if promise == "no-directory-fsync":
        LocalStorage.sync_folder = lambda self, folder="": None  # type: ignore[method-assign]


def main(config: str, notes: str, broken: str = "") -> None:
    _break(broken)
    train(SpeedtronicConfig.load(config), os.open(notes, os.O_WRONLY))


if __name__ == "__main__":
    main(*sys.argv[1:])
