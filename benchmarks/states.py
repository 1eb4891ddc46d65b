"""What the benchmarks of saving and loading save: the state of a language model under AdamW."""

from pathlib import Path

import torch

from speedtronic import SpeedtronicConfig
from speedtronic.runtime.components import Components, build_components
from speedtronic.training.state import TrainState

MODEL = {"vocab_size": 256, "max_seq_len": 128, "n_head": 8, "n_kv_head": 8}


def build_components_of(
    output_dir: Path, *, d_model: int, n_layer: int, batch_size: int
) -> Components:
    """A run on made-up tokens. With `d_model` 512 and 10 layers it has some 32 million parameters,
    384 MB of state."""
    config = SpeedtronicConfig.from_dict(
        {
            "run": {"output_dir": str(output_dir), "device": "cpu", "max_steps": 10**6},
            "model": {**MODEL, "d_model": d_model, "n_layer": n_layer},
            "data": {"micro_batch_size": batch_size, "target_batch_size": batch_size},
        }
    )
    return build_components(config)


def build_state(output_dir: Path, *, d_model: int, n_layer: int) -> TrainState:
    """The same, as if after a step, so that the optimizer has its moments."""
    state = build_components_of(output_dir, d_model=d_model, n_layer=n_layer, batch_size=1).state
    for parameter in state.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.schedule.step()
    state.step = state.batches.position = 1
    return state
