"""Small states of the shape that training saves."""

from pathlib import Path
from typing import Any

import torch

from speedtronic.checkpoint import CheckpointStore, open_storage
from tests.facts import facts_at


def state_at(step: int, fill: float | None = None) -> dict[str, Any]:
    """The state of a run at `step`, different at each, or wherever `fill` differs."""
    weight = torch.full((4, 3), float(step) if fill is None else fill)
    moments = {"step": torch.tensor(float(step)), "exp_avg": weight * 2}
    return {
        **facts_at(step),
        "model": {"embedding": weight, "head": weight, "norm": torch.ones(3, dtype=torch.bfloat16)},
        "modes": {"": True, "block": False},
        "optimizer": {"state": {0: moments}, "param_groups": [{"params": [0], "lr": 1e-3}]},
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
