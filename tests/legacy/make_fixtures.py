"""Make `files/` with the real package. It needs an environment of its own, outside this one:

python3 -m venv /tmp/old
/tmp/old/bin/pip install torch==2.13.0 numpy pyyaml
/tmp/old/bin/pip install --no-deps speedtronic==2.0.0
/tmp/old/bin/python tests/legacy/make_fixtures.py

files/text.txt              what every run trains on
files/<run>/checkpoints/    a run of 2.0 stopped at some step, as 2.0 left it
files/<run>/losses.json     the losses of the same run uninterrupted, from step 1 on
files/<run>/config.json     its configuration, without the data set
files/full.yaml             a configuration with every key of 2.0, as 2.0 writes it
files/short.yaml            one with its short forms, as a person writes it
files/resolved.json         both as 2.0 understood them
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.utils.data import Dataset

from speedtronic import __version__
from speedtronic.config import SpeedtronicConfig
from speedtronic.runtime import train_from_config

FILES = Path(__file__).parent.absolute() / "files"
TEXT = " ".join(f"{n} times {n} is {n * n}." for n in range(60)) + "\n"
BLOCK_SIZE = 16

MODEL = {
    "vocab_size": 256,
    "max_seq_len": BLOCK_SIZE,
    "n_layer": 2,
    "n_head": 2,
    "n_kv_head": 1,
    "d_model": 8,
    "d_ff": 16,
}
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    # name -> the step it stops at, and what is special about it
    "tied": (
        4,
        {
            "data": {"micro_batch_size": 2, "target_batch_size": 4},
            "scheduler": {"warmup_steps": 3, "min_lr_ratio": 0.2},
            "checkpoint": {"every_steps": 2},
        },
    ),
    "untied": (
        3,
        {
            "model": {"name": "gpt", "tie_weights": False, "rope_base": 100.0},
            "data": {"micro_batch_size": 4, "target_batch_size": 4},
            "optimizer": {"weight_decay": 0.5, "betas": [0.8, 0.9]},
            "scheduler": {"name": "constant", "warmup_steps": 0},
        },
    ),
    "muon": (1, {"model": {"n_layer": 1, "d_model": 4}, "optimizer": {"name": "muon"}}),
}
SHORT = {
    "name": "short",
    "max_steps": 40,
    "log_every": 5,
    "seed": 7,
    "model": {"name": "gpt", "gradient_checkpointing": True},
    "optimizer": "AdamW",
    "muon_plus": False,
    "cautious": True,
    "precision": {"dtype": "fp32"},
    "compile": {"enabled": True},
    "scheduler": None,
    "hub": {"repo_id": "someone/something", "collaborators": ["a", "b"], "token": "hunter2"},
    "shape_validation": {"alignment": 8},
    "ooo_backprop": True,
    "data": {"num_tokens": 50, "block_size": 32, "prefetch_factor": 4},
}
FULL = {
    "run": {"name": "full", "seed": 3, "device": "cpu", "max_steps": 900, "output_dir": "out"},
    "model": {**MODEL, "dropout": 0.25, "tie_weights": False, "rope_base": 500.0},
    "data": {
        "text_path": "some/text.txt",
        "vocab_size": 300,
        "micro_batch_size": 2,
        "target_batch_size": 6,
        "num_workers": 1,
        "prefetch_factor": 3,
        "pin_memory": False,
        "shuffle": True,
        "drop_last": False,
        "seed": 11,
        "max_steps": 800,
    },
    "optimizer": {
        "name": "muon",
        "lr": 1e-3,
        "betas": [0.7, 0.8],
        "eps": 1e-7,
        "weight_decay": 0.3,
        "fused": False,
        "grad_clip": 2.0,
        "muon_plus": True,
        "muon_momentum": 0.9,
    },
    "scheduler": {"name": "constant", "warmup_steps": 9, "max_steps": 700, "min_lr_ratio": 0.4},
    "precision": {"mode": "bf16", "dtype": "fp16"},
    "checkpoint": {"directory": "ck", "every_steps": 7, "keep_last": None, "resume": True},
    "logging": {"level": "debug", "file": "log.txt", "every_steps": 3, "json_file": "m.jsonl"},
    "gradient_checkpointing": True,
    "ooo_streams": 2,
}


class Blocks(Dataset):
    """Sample i is made of the bytes [i T, i T + T + 1) of the text, as today's package cuts it."""

    def __len__(self) -> int:
        return (len(TEXT) - 1) // BLOCK_SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = index * BLOCK_SIZE
        tokens = torch.tensor(list(TEXT.encode()[start : start + BLOCK_SIZE + 1]))
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def make_run(name: str, stop: int, special: dict[str, Any]) -> None:
    torch.save(Blocks(), "blocks.pt")
    config: dict[str, Any] = {
        "run": {"name": name, "device": "cpu", "max_steps": 12},
        "model": {**MODEL, **special.get("model", {})},
        "data": {**special.get("data", {})},
        "optimizer": {"lr": 1e-2, **special.get("optimizer", {})},
        "scheduler": special.get("scheduler", {}),
        "precision": "fp32",
        "checkpoint": {"keep_last": None, **special.get("checkpoint", {})},
    }
    target = FILES / name
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    config["data"]["dataset"] = "blocks.pt"

    config["run"]["output_dir"] = "stopped"
    train_from_config(SpeedtronicConfig.from_dict(config), max_steps=stop)
    shutil.copytree("stopped/checkpoints", target / "checkpoints")

    config["run"]["output_dir"] = "whole"
    config["logging"] = {"json_file": "metrics.jsonl"}
    train_from_config(SpeedtronicConfig.from_dict(config))
    events = [json.loads(line) for line in Path("metrics.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "train_step"]
    (target / "losses.json").write_text(json.dumps(losses) + "\n")


def main() -> None:
    assert __version__ == "2.0.0", __version__
    torch.set_num_threads(1)
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    (FILES / "text.txt").write_text(TEXT)
    for name, (stop, special) in RUNS.items():
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            make_run(name, stop, special)
    full = SpeedtronicConfig.from_dict(FULL)
    (FILES / "full.yaml").write_text(full.to_yaml())
    (FILES / "short.yaml").write_text(yaml.safe_dump(SHORT, sort_keys=False))
    resolved = {"full": full.to_dict(), "short": SpeedtronicConfig.from_dict(SHORT).to_dict()}
    resolved["short"]["distributed"]["token"] = None
    (FILES / "resolved.json").write_text(json.dumps(resolved, indent=1) + "\n")


if __name__ == "__main__":
    main()
