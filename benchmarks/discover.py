"""Finding the newest of 10,000 checkpoints: `discover`, over listing and sorting names, at most 3.

Ours reads the pointer, lists the directory and reads the newest manifest; no payload is opened. The
other is a bare `os.scandir` of the same directory and a sort.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from figures import AT_MOST, show_figure

from speedtronic.checkpoint import CheckpointStore, Manifest, layout, open_storage
from speedtronic.checkpoint.candidates import candidates, read_pointer

NUM_CHECKPOINTS = 10_000
EVERY_STEPS = 100
NUM_ROUNDS = 31


def fill(folder: Path) -> None:
    """One checkpoint as the store writes it, and the others after its pattern."""
    state: dict[str, Any] = {"step": EVERY_STEPS, "samples": 1, "tokens": 1, "skipped_updates": 0}
    state |= {"loss": 1.0, "model": {"weight": torch.ones(3)}, "data": {}}
    CheckpointStore(open_storage(str(folder)), keep_last=None).save(state)
    first = (folder / layout.manifest_name(EVERY_STEPS)).read_bytes()
    manifest = Manifest.from_file(first, EVERY_STEPS)
    for number in range(2, NUM_CHECKPOINTS + 1):
        step = number * EVERY_STEPS
        name = layout.payload_name(step)
        entry = manifest.payload.model_copy(update={"name": name})
        of_step = manifest.model_copy(update={"step": step, "files": [entry]})
        (folder / name).write_bytes(b"")
        (folder / layout.manifest_name(step)).write_bytes(of_step.to_bytes())
    (folder / layout.POINTER).write_bytes(of_step.pointer().to_bytes())


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="discover-benchmark-", dir=".") as name:
        folder = Path(name)
        fill(folder)
        storage = open_storage(name)

        def ours() -> None:
            found, newest = read_pointer(storage), next(candidates(storage))
            assert newest.manifest.pointer() == found.pointer
            assert newest.step == NUM_CHECKPOINTS * EVERY_STEPS

        def bare() -> None:
            with os.scandir(folder) as entries:
                sorted(entry.name for entry in entries)

        ours()
        bare()
        ratios = [seconds(ours) / seconds(bare) for _ in range(NUM_ROUNDS)]
    return show_figure("discover", ratios, holds=AT_MOST, bar=3.0)


if __name__ == "__main__":
    sys.exit(not main())
