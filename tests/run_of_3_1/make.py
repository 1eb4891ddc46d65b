"""Make the run that `test_run_of_3_1.py` takes up: with version 3.1.0, in this folder.

    git checkout c3e840e && make setup && .venv/bin/python tests/run_of_3_1/make.py

text.txt          what it trains on
train.yaml        its configuration; paths in it are relative to the folder that both lie in
run/              the run, at step 12 of 24
expected.json     what 3.1.0 said of it (`inspect`, `verify`), and how it went on to its end
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent.absolute()
TEXT = " ".join(f"{n} times {n} is {n * n}." for n in range(60)) + "\n"
CONFIG = """\
run: {output_dir: run, max_steps: 24, device: cpu, seed: 7}
model: {vocab_size: 256, max_seq_len: 16, n_layer: 2, n_head: 2, d_model: 16, dropout: 0.1}
data: {text_path: text.txt, shuffle: true, micro_batch_size: 2, target_batch_size: 4}
optimizer: {lr: 0.003, grad_clip: 1.0}
scheduler: {warmup_steps: 4}
checkpoint: {every_steps: 4, keep_last: 2}
logging: {every_steps: 1}
"""


def speedtronic(directory: Path, *arguments: str) -> str:
    """Run the command in a directory; return what it printed."""
    command = [sys.executable, "-m", "speedtronic", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=directory, env=env, check=True, stdout=subprocess.PIPE
    ).stdout.decode()


def losses(directory: Path) -> list[float]:
    lines = (directory / "run/metrics.jsonl").read_text().splitlines()
    return [
        event["loss"] for line in lines if (event := json.loads(line)).get("event") == "train_step"
    ]


def outcome(directory: Path) -> dict[str, Any]:
    """What is compared of a run: what the commands say, the names of its files, its losses."""
    folder = directory / "run"
    return {
        "inspect": json.loads(speedtronic(directory, "inspect", "run", "--json")),
        "verify": json.loads(speedtronic(directory, "verify", "run", "--json")),
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "losses": losses(directory),
    }


def machine() -> dict[str, str]:
    """What the last bits of a result depend on."""
    info = Path("/proc/cpuinfo").read_text()
    keys = ("vendor_id", "cpu family", "model", "stepping", "flags")
    found = {key: re.search(rf"^{key}\s*: (.*)$", info, re.MULTILINE) for key in keys}
    cpu = " ".join(match[1] for match in found.values() if match)
    return {"torch": torch.__version__, "cpu": hashlib.sha256(cpu.encode()).hexdigest()}


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        (directory / "text.txt").write_text(TEXT)
        (directory / "train.yaml").write_text(CONFIG)
        speedtronic(directory, "train", "--config", "train.yaml", "--set", "run.max_steps=12")
        before = outcome(directory)
        for name in ("text.txt", "train.yaml", "run"):
            kept = HERE / name
            shutil.rmtree(kept) if kept.is_dir() else kept.unlink(missing_ok=True)
            (shutil.copytree if name == "run" else shutil.copy)(directory / name, kept)
        speedtronic(directory, "train", "--config", "train.yaml", "--resume")
        expected = {"machine": machine(), "before": before, "after": outcome(directory)}
        (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
