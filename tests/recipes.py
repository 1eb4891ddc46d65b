"""Small runs for the tests, and ways to look at how they ended."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import CheckpointStore, Manifest, open_storage
from speedtronic.checkpoint.candidates import candidates

REAL_TEXT = ["{stdlib}/this.py", "{stdlib}/abc.py", "{stdlib}/ast.py"]


def exact_recipe(output_dir: Path, **changes: Any) -> SpeedtronicConfig:
    """48 steps over real text that touch all that can go wrong: dropout, shuffle, accumulation,
    clipping, and three epochs' ends, in the middle of a step."""
    config = SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": str(output_dir), "max_steps": 48, "device": "cpu"},
            "model": {
                "vocab_size": 256,
                "max_seq_len": 32,
                "n_layer": 2,
                "n_head": 4,
                "n_kv_head": 2,
                "d_model": 32,
                "dropout": 0.1,
            },
            "data": {
                "text_path": REAL_TEXT,
                "num_tokens": 3700,  # 115 samples: 48 updates of 8 take 3.3 epochs
                "shuffle": True,
                "drop_last": False,
                "micro_batch_size": 4,
                "target_batch_size": 8,
            },
            "optimizer": {"lr": 3e-3, "grad_clip": 1.0},
            "scheduler": {"warmup_steps": 5},
            "checkpoint": {"every_steps": 4},
            "logging": {"every_steps": 1},
        }
    )
    return config.override(changes)


def newest(config: SpeedtronicConfig) -> Manifest:
    """The manifest of the newest committed checkpoint of a run; reads only."""
    found = candidates(open_storage(config.checkpoint_dir))
    return next(candidate for candidate in found if candidate.committed).manifest


def load(config: SpeedtronicConfig) -> dict[str, Any]:
    """The state in the newest good checkpoint of a run."""
    checkpoint = CheckpointStore(open_storage(config.checkpoint_dir), keep_last=None).select()
    assert checkpoint is not None
    return checkpoint.state


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a state with where it is."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from tensors(item, f"{path}/{index}")


def assert_same_tensors(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Every tensor of two states is equal to the bit, and there are the same ones."""
    of_a, of_b = dict(tensors(a)), dict(tensors(b))
    assert of_a.keys() == of_b.keys()
    differing = [path for path, x in of_a.items() if not torch.equal(x, of_b[path])]
    assert not differing
