"""What the recovery checklist costs, on a checkpoint of 384 MiB that is in the page cache.

- `recovery_checklist_ratio`: the checklist with drill `load` over one verified load in this
  process, at most 1.5. The checklist loads once, in a process of its own, which is started before:
  its start is what comes on top. It judges every number, takes the state digest anew, and reads
  some small files besides.
- `recovery_schedule_share`: processor time of one `speedtronic verify DIR --drill load`, both of
  its processes from start to end, over the 15 minutes from one to the next; at most 1 % of a core.

Checklist and load take turns, a few times each in a sample, of which the least counts.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's own folder is on the path, the one above it is not
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
from figures import AT_MOST, show_figure  # noqa: E402

from speedtronic import SpeedtronicConfig  # noqa: E402
from speedtronic.checkpoint import CheckpointStore, open_storage  # noqa: E402
from speedtronic.recovery import LoadProcess, run_checklist  # noqa: E402
from speedtronic.training.rng import capture_rng  # noqa: E402

BAR_RATIO = 1.5
BAR_SHARE = 0.01
EVERY_S = 15 * 60
NUM_SAMPLES = 11
NUM_TIMES = 3
NUM_VERIFIED = 5
STEP = 100
SIZE_BYTES = 384 * 2**20
NUM_TENSORS = 48


def make_run(directory: Path) -> CheckpointStore:
    """A run with one checkpoint: weights, and two moments of each, as AdamW keeps them."""
    config = SpeedtronicConfig.from_dict({"run": {"output_dir": str(directory)}})
    config = config.override({"scheduler.max_steps": config.run.max_steps})
    directory.mkdir()
    (directory / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    size = SIZE_BYTES // 4 // 3 // NUM_TENSORS

    def tensor() -> torch.Tensor:
        return torch.randn(size)

    moments = {
        i: {"step": torch.tensor(float(STEP)), "exp_avg": tensor(), "exp_avg_sq": tensor()}
        for i in range(NUM_TENSORS)
    }
    store = CheckpointStore(open_storage(config.checkpoint_dir), keep_last=None)
    store.config_fingerprint = config.fingerprint()
    store.save(
        {
            "format_version": 1,
            "model": {f"weight.{i}": tensor() for i in range(NUM_TENSORS)},
            "modes": {"": True},
            "optimizer": {"state": moments, "param_groups": [{"params": list(moments)}]},
            "scheduler": {"last_epoch": STEP, "max_steps": STEP, "base_lrs": [1e-3]},
            "scaler": None,
            "step": STEP,
            "samples": STEP,
            "tokens": STEP,
            "skipped_updates": 0,
            "loss": 1.0,
            "data": {"samples": STEP, "shuffle": True},
            "rng": capture_rng(torch.device("cpu")),
            "coordinator": None,
            "config": config.to_dict(),
        }
    )
    return store


def verify(directory: Path) -> float:
    """Seconds of processor time, the child's included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "speedtronic", "verify", str(directory), "--drill", "load"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def best(run: Callable[[], Any]) -> float:
    """Seconds that `run` takes; the least of a few times, for others use the machine too."""
    times = []
    for _ in range(NUM_TIMES):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> int:
    ratios, shares = [], []
    with tempfile.TemporaryDirectory(prefix="recovery-") as home:
        directory = Path(home) / "run"
        store = make_run(directory)

        def load() -> None:
            store.load_step(STEP)

        with LoadProcess() as loader:

            def checklist() -> None:
                report = run_checklist(str(directory), drill="load", loader=loader)
                assert report.healthy, report.to_markdown()

            for side in (checklist, load):  # warm-up
                side()
            for number in range(NUM_SAMPLES):
                sides = (checklist, load) if number % 2 else (load, checklist)
                taken = {side: best(side) for side in sides}
                ratios.append(taken[checklist] / taken[load])
                print(
                    f"load {taken[load]:.3f} s, checklist {taken[checklist]:.3f} s: "
                    f"{ratios[-1]:.2f}",
                    file=sys.stderr,
                )
        for _ in range(NUM_VERIFIED):
            processor_s = verify(directory)
            shares.append(processor_s / EVERY_S)
            print(f"verify {processor_s:.2f} s of processor time", file=sys.stderr)
    holds = [
        show_figure("recovery_checklist_ratio", ratios, holds=AT_MOST, bar=BAR_RATIO),
        show_figure("recovery_schedule_share", shares, holds=AT_MOST, bar=BAR_SHARE),
    ]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())
