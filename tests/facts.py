"""What every checkpoint holds besides the model, for tests that make states by hand."""

import copy
import random
from typing import Any

import numpy as np
import torch


def _random_states() -> dict[str, Any]:
    """As `capture_rng` gives them, of generators of our own."""
    version, words, gauss = random.Random(7).getstate()
    name, keys, position, has_gauss, cached = np.random.RandomState(7).get_state(legacy=True)
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "words": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(cached),
        },
        "torch": torch.Generator().get_state(),
    }


RANDOM = _random_states()


def facts_at(step: int) -> dict[str, Any]:
    """Of a run with one parameter that has made `step` updates of four samples each."""
    return {
        "format_version": 1,
        "modes": {"": True},
        "optimizer": {
            "state": {0: {"step": torch.tensor(float(step))}},
            "param_groups": [{"params": [0], "lr": 1e-3}],
        },
        "scheduler": {"last_epoch": step, "max_steps": 100, "base_lrs": [1e-3]},
        "scaler": None,
        "step": step,
        "samples": step * 4,
        "tokens": step * 64,
        "skipped_updates": 0,
        "loss": 1.5,
        "data": {"samples": step * 4, "epoch": 0, "seed": 7, "shuffle": True},
        "rng": copy.deepcopy(RANDOM),
        "coordinator": None,
        "config": {"run": {"output_dir": "runs/a"}},
        "precision": {"mode": "fp32"},
    }
