"""Small states of the shape that training saves."""

from pathlib import Path
from typing import Any

import torch

from speedtronic.checkpoint import CheckpointStore, open_storage


def state_at(step: int, fill: float | None = None) -> dict[str, Any]:
    """The state of a run at `step`, different at each, or wherever `fill` differs."""
    weight = torch.full((4, 3), float(step) if fill is None else fill)
    return {
        "format_version": 1,
        "model": {"embedding": weight, "head": weight, "norm": torch.ones(3, dtype=torch.bfloat16)},
        "modes": {"": True, "block": False},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weight * 2}}},
        "scheduler": {"last_epoch": step, "max_steps": 100, "base_lrs": [1e-3]},
        "scaler": None,
        "step": step,
        "samples": step * 4,
        "tokens": step * 64,
        "skipped_updates": 0,
        "loss": 1.5,
        "data": {"samples": step * 4, "epoch": 0, "shuffle": True},
        "rng": {"torch": torch.arange(16, dtype=torch.uint8), "python": {"gauss": None}},
        "coordinator": None,
        "config": {"run": {"output_dir": "runs/a"}},
        "precision": {"mode": "fp32"},
    }


def open_store(root: Path, keep_last: int | None = None) -> CheckpointStore:
    """Of a run that saves at every second step."""
    return CheckpointStore(open_storage(str(root)), keep_last=keep_last, first_saves=(2,))


def selected_step(root: Path) -> int:
    """The step that a new process would go on from."""
    checkpoint = open_store(root).select()
    assert checkpoint is not None
    assert checkpoint.state["step"] == checkpoint.manifest.step
    return checkpoint.manifest.step
