"""Kill a training process two hundred times over one run: `make soak`.

    python -m tests.soak [NUM_KILLS]

The run has dropout, a shuffle, accumulation, validation and saves in the background; each process
has 0 or 2 loader workers, whichever the seed says. A fifth of the kills (SIGKILL) come at a random
moment while a process starts, the others at a random moment of training. It must end as the run
that nobody disturbed: the same state digest, the same tensors, the same metrics file. Lines of
`checkpoint_saved` are left out of that, as they tell when a process heard of a save, and so is how
fast it was.
"""

import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speedtronic import SpeedtronicConfig
from speedtronic.errors import WorkerDied
from speedtronic.plan import plan_chunks
from speedtronic.worker.chunk import ChunkWorker
from tests.recipes import REAL_TEXT, assert_same_tensors, exact_recipe, load, newest
from tests.waiting import last_step

NUM_KILLS = 200
STEPS_A_KILL = 4  # a save every second step: most processes get on, some do not
CHUNK_STEPS = 40
AT_START = 0.2  # of the kills
START_S = 2.0  # about what a process takes before it trains
MORE_S = 0.01  # after a step was seen, at most: the next step or two
OF_THE_CLOCK = {"tokens_per_s", "save_stall_s", "save_durable_s"}


def recipe(output_dir: Path, num_kills: int) -> SpeedtronicConfig:
    """A run long enough to be killed so often."""
    return exact_recipe(
        output_dir,
        **{
            "run.max_steps": max(2 * CHUNK_STEPS, num_kills * STEPS_A_KILL),
            "data.num_tokens": 60_000,
            "validation.every_steps": 5,
            "validation.text_path": REAL_TEXT[0],
            "validation.max_batches": 2,
            "checkpoint.every_steps": 2,
            "checkpoint.async_save": True,
            "chunk.steps": CHUNK_STEPS,
        },
    )


def soak(num_kills: int, folder: Path, seed: int = 0) -> list[str]:
    """Train a run undisturbed and another under `num_kills` kills; what differs, in words."""
    undisturbed = recipe(folder / "undisturbed", num_kills)
    with ChunkWorker(undisturbed) as worker:
        _train(worker, undisturbed)
    killed = recipe(folder / "killed", num_kills)
    found = [] if _kill(killed, num_kills, random.Random(seed)) else ["fewer kills than meant"]
    return found + list(differences(killed, undisturbed))


def differences(run: SpeedtronicConfig, other: SpeedtronicConfig) -> list[str]:
    """What two runs did not end alike in."""
    found = []
    if (digest := newest(run).state_digest) != (expected := newest(other).state_digest):
        found.append(f"state digest: found {digest}, expected {expected}")
    try:
        assert_same_tensors(load(run), load(other))
    except AssertionError as error:
        found.append(f"tensors: {error}")
    if metrics(run) != metrics(other):
        found.append(f"metrics: {run.run.output_dir} and {other.run.output_dir} differ")
    return found


def metrics(config: SpeedtronicConfig) -> list[dict[str, Any]]:
    """The metrics file without what depends on the clock."""
    lines = (Path(config.run.output_dir) / "metrics.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in lines.splitlines()]
    return [
        {key: value for key, value in event.items() if key not in OF_THE_CLOCK}
        for event in events
        if event["event"] != "checkpoint_saved"
    ]


def _kill(config: SpeedtronicConfig, num_kills: int, rng: random.Random) -> bool:
    """Train under kills to the end; whether there were so many."""
    metrics_file = Path(config.run.output_dir) / "metrics.jsonl"
    for left in range(num_kills, 0, -1):
        step = last_step(metrics_file)  # before the next process starts, and rewinds the file
        pace = (config.run.max_steps - step) / (left + 1)
        moment = Moment(step=step + round(rng.uniform(0, 2) * pace), more_s=rng.uniform(0, MORE_S))
        if rng.random() < AT_START:
            moment = Moment(step=step + 1, by_s=rng.uniform(0, START_S))
        workers = rng.choice([0, 2])
        with ChunkWorker(config.override({"data.num_workers": workers})) as worker:
            if not _killed(worker, config, metrics_file, moment):
                return False
    with ChunkWorker(config) as worker:
        _train(worker, config)
    return True


@dataclass(frozen=True)
class Moment:
    """When to kill a process: `more_s` after it was at `step`, or `by_s` after its start."""

    step: int
    more_s: float = 0.0
    by_s: float = float("inf")


def _killed(
    worker: ChunkWorker, config: SpeedtronicConfig, metrics_file: Path, moment: Moment
) -> bool:
    """Train until killed at `moment`; False if the run got to its end before."""
    done = threading.Event()
    killer = threading.Thread(target=_kill_at, args=(worker, metrics_file, moment, done))
    killer.start()
    try:
        _train(worker, config)
    except WorkerDied as error:
        assert "SIGKILL" in str(error), error
        return True
    finally:
        done.set()
        killer.join()
    return False


def _kill_at(
    worker: ChunkWorker, metrics_file: Path, moment: Moment, done: threading.Event
) -> None:
    while worker.pid is None:
        if done.wait(0.001):
            return
    by = time.monotonic() + moment.by_s
    while time.monotonic() < by and last_step(metrics_file) < moment.step:
        if done.wait(0.001):
            return
    done.wait(moment.more_s)
    if not done.is_set() and worker.pid is not None:
        with suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)


def _train(worker: ChunkWorker, config: SpeedtronicConfig) -> None:
    pointer = worker.restore()
    start = pointer.step if pointer else 0
    target, steps = config.run.max_steps, config.chunk.steps
    for chunk in plan_chunks(start=start, target=target, chunk_steps=steps):
        pointer = worker.train(chunk, pointer).pointer


def main(num_kills: int) -> int:
    """The exit code."""
    logging.basicConfig(level=logging.ERROR)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = soak(num_kills, Path(folder))
    took_s = time.monotonic() - started
    verdict = "; ".join(found) or "digest, tensors and metrics file as undisturbed"
    print(f"{num_kills} kills of one run in {took_s:.0f} s: {verdict}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else NUM_KILLS))
