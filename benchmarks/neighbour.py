"""What training loses to a busy neighbour: steps per second beside one process that never rests.

- `neighbour_busy`: `speedtronic train` over a plain PyTorch loop, each beside a busy loop; at
  least 2.
- `neighbour_alone`: the same without the neighbour; at least 0.98.

Both sides are processes of their own, with the same model, batches and number of threads (as many
as there are cores, at least two), and take turns. The plain one is started as one starts a script;
ours by its command, which saves and validates nothing here. Each tells the rate of its steps after
a warm-up. A figure is the median over the rounds of ours / plain.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import AT_LEAST, show_figure

WARM_UP_STEPS = 4
NUM_STEPS = {"busy": 12, "alone": 32}
NUM_ROUNDS = {"busy": 5, "alone": 9}
BARS = {"busy": 2.0, "alone": 0.98}
BUSY_LOOP = "while True: pass"


def recipe(num_steps: int, folder: Path) -> dict[str, Any]:
    return {
        "run": {
            "device": "cpu",
            "max_steps": WARM_UP_STEPS + num_steps,
            "output_dir": str(folder / "run"),
        },
        "model": {
            "n_layer": 4,
            "d_model": 256,
            "n_head": 4,
            "vocab_size": 512,
            "max_seq_len": 128,
        },
        "data": {"micro_batch_size": 8, "target_batch_size": 8, "shuffle": True},
        "scheduler": {"name": "constant", "warmup_steps": 100},
        "optimizer": {"grad_clip": 1.0},
        "checkpoint": {"enabled": False},
        "logging": {"every_steps": WARM_UP_STEPS, "json_file": "metrics.jsonl"},
    }


def plain(file: str) -> float:
    """Train what `file` describes as a plain script does; returns steps per second."""
    from trainer_overhead import BareLoop

    from speedtronic import SpeedtronicConfig

    config = SpeedtronicConfig.load(file)
    loop = BareLoop(config)
    loop.train(WARM_UP_STEPS)
    num_steps = config.run.max_steps - WARM_UP_STEPS
    started = time.perf_counter()
    loop.train(num_steps)
    return num_steps / (time.perf_counter() - started)


def ours(folder: Path, num_steps: int, environment: dict[str, str]) -> float:
    """Steps per second of `speedtronic train`, by its own metrics."""
    command = [sys.executable, "-m", "speedtronic", "train", "--config", str(folder / "run.json")]
    _run(command, environment)
    lines = (folder / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [line for line in map(json.loads, lines) if line["event"] == "train_step"]
    after = [line for line in steps if line["step"] > WARM_UP_STEPS]
    tokens_a_step = after[-1]["tokens"] / after[-1]["step"]
    seconds = sum(WARM_UP_STEPS * tokens_a_step / line["tokens_per_s"] for line in after)
    return float(num_steps / seconds)


def measure(num_steps: int, *, rounds: int, busy: bool) -> list[float]:
    """Ours / plain of each round."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(2, os.cpu_count() or 1))}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        environment.pop(name, None)
    ratios = []
    with neighbour(busy):
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="neighbour-") as name:
                folder = Path(name)
                file = folder / "run.json"
                file.write_text(json.dumps(recipe(num_steps, folder)), encoding="utf-8")
                script = [sys.executable, __file__, "--plain", str(file)]
                plain_rate = float(_run(script, environment))
                our_rate = ours(folder, num_steps, environment)
            ratios.append(our_rate / plain_rate)
            where = "beside a busy loop" if busy else "alone"
            print(f"{where}: {our_rate:.1f} over {plain_rate:.1f} steps/s", file=sys.stderr)
    return ratios


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """One process that never rests, until the end of the block."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def main() -> int:
    if sys.argv[1:2] == ["--plain"]:
        print(plain(sys.argv[2]))
        return 0
    held = []
    for name in ("busy", "alone"):
        ratios = measure(NUM_STEPS[name], rounds=NUM_ROUNDS[name], busy=name == "busy")
        held.append(show_figure(f"neighbour_{name}", ratios, holds=AT_LEAST, bar=BARS[name]))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
