"""How fast a killed run trains again: `restart_vs_import`, over `import torch`, at most 0.4.

The time from SIGKILL of the process that trains to the next completed update, in turns with
`python -c "import torch"`. A tiny model, one thread, no delay before the retry: what is left is
noticing the death, forking from the standby, loading the checkpoint, and one update.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["OMP_NUM_THREADS"] = "1"

from figures import AT_MOST, show_figure

from speedtronic import SpeedtronicConfig
from speedtronic.errors import WorkerDied
from speedtronic.plan import Chunk
from speedtronic.worker.chunk import ChunkWorker
from speedtronic.worker.messages import Event, StepReached
from speedtronic.worker.standby import STANDBY

BAR = 0.4
NUM_ROUNDS = 9
READY_S = 120.0
FAR = 10**6
TRAIN_S = 0.3  # from its first update until it is killed


def configure(output_dir: str) -> SpeedtronicConfig:
    """A model of some thousand parameters, saved every ten updates."""
    return SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": output_dir, "max_steps": FAR, "device": "cpu"},
            "model": {"vocab_size": 256, "max_seq_len": 32, "n_layer": 2, "n_head": 4}
            | {"n_kv_head": 2, "d_model": 32},
            "data": {"text_path": "{stdlib}/this.py", "micro_batch_size": 4}
            | {"target_batch_size": 4},
            "checkpoint": {"every_steps": 10},
            "chunk": {"steps": 10, "retry_delay_s": 0},
            "logging": {"every_steps": 1000},
        }
    )


class KilledTraining:
    """Trains until it is killed, again and again.

    Attributes:
        worker: has no process between two attempts.
    """

    def __init__(self, config: SpeedtronicConfig) -> None:
        self.worker = ChunkWorker(config, on_event=self._on_event)
        self._first_step_at: float | None = None
        self._killed_at = 0.0
        self._timer: threading.Timer | None = None

    def attempt(self) -> float:
        """Train, and be killed a moment after the first update.

        Returns:
            Seconds from the kill before this one to the first update.
        """
        self._first_step_at, killed_before = None, self._killed_at
        try:
            self.worker.train(Chunk(0, FAR), None)
        except WorkerDied:
            assert self._timer is not None and self._first_step_at is not None
            self._timer.join()
            return self._first_step_at - killed_before
        raise AssertionError("it was not killed")

    def _on_event(self, event: Event) -> None:
        if isinstance(event, StepReached) and self._first_step_at is None:
            self._first_step_at = time.perf_counter()
            assert self.worker.pid is not None
            self._timer = threading.Timer(TRAIN_S, self._kill, [self.worker.pid])
            self._timer.start()

    def _kill(self, pid: int) -> None:
        self._killed_at = time.perf_counter()
        os.kill(pid, signal.SIGKILL)


def import_s() -> float:
    """Seconds that a new process takes to import torch."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - started


def main() -> bool:
    with tempfile.TemporaryDirectory(prefix="restart-benchmark-") as directory:
        training = KilledTraining(configure(directory))
        with training.worker:
            training.attempt()
            assert STANDBY.wait_until_ready(READY_S)
            ratios = []
            for _ in range(NUM_ROUNDS):
                importing_s = import_s()
                training.attempt()
                restart_s = training.attempt()
                ratios.append(restart_s / importing_s)
                print(f"restart {restart_s:.3f} s, import {importing_s:.3f} s", file=sys.stderr)
            assert training.worker.restores[-1] > 0, "no checkpoint was gone on from"
    return show_figure("restart_vs_import", ratios, holds=AT_MOST, bar=BAR)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
