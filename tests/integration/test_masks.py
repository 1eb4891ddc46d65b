"""A buffer that is infinite on purpose is no fault of a checkpoint."""

from pathlib import Path
from typing import Any

import torch

from speedtronic.recovery import run_checklist
from speedtronic.runtime import train_from_config
from tests.tiny import names, tiny_config


class Masked(torch.nn.Module):
    def __init__(self, vocab_size: int, **_: Any) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, vocab_size)
        self.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"logits": self.embedding(input_ids)}


def test_a_checklist_finds_nothing_and_moves_nothing(tmp_path: Path) -> None:
    model = {"model": {"name": f"{__name__}:Masked", "vocab_size": 256, "max_seq_len": 16}}
    config = tiny_config(tmp_path)
    values = config.to_dict()
    values["model"] = model["model"]
    train_from_config(values, max_steps=4)
    report = run_checklist(str(tmp_path), repair=True)
    assert report.healthy, report.to_markdown()
    assert report.selected == 4
    assert "quarantine" not in names(tmp_path / "checkpoints")
