"""A checkpoint that is whole and kills whoever goes on from it."""

import json
import os
import signal
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import WorkerDied, WorkerFailed
from speedtronic.plan import Chunk
from speedtronic.worker.chunk import ChunkWorker
from tests.recipes import assert_same_tensors, exact_recipe, load, newest
from tests.tiny import names

CHUNK = Chunk(0, 16)


LOOKED: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
"""Models that have looked; an attribute of theirs would come back with a resume."""


class Deadly(nn.Module):
    """Dies in its first forward pass if it was loaded with a number of calls that `file` lists."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)
        self.embedding = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self not in LOOKED and self.file.exists():
            deadly = json.loads(self.file.read_text())
            if int(self.num_calls) in deadly:
                os.kill(os.getpid(), signal.SIGKILL)
        LOOKED.add(self)
        self.num_calls += 1
        logits = self.head(self.embedding(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss}


def recipe(directory: Path, deadly: Path) -> SpeedtronicConfig:
    """Two calls of the model to a step; a checkpoint every four."""
    config = exact_recipe(directory).to_dict()
    config["model"] = {"name": "tests.integration.test_poison:Deadly", "file": str(deadly)}
    return SpeedtronicConfig.from_dict(config)


def calls_at(config: SpeedtronicConfig) -> int:
    return int(load(config)["model"]["num_calls"])


@pytest.fixture
def trained(tmp_path: Path) -> tuple[SpeedtronicConfig, Path]:
    """A run at step 8, and the file that makes its checkpoints deadly."""
    deadly = tmp_path / "deadly.json"
    config = recipe(tmp_path / "run", deadly)
    with ChunkWorker(config) as worker:
        worker.train(Chunk(0, 8), None)
    return config, deadly


def test_it_is_set_aside_with_its_deaths_and_the_run_goes_on(
    trained: tuple[SpeedtronicConfig, Path], tmp_path: Path
) -> None:
    config, deadly = trained
    assert newest(config).step == 8
    deadly.write_text(json.dumps([calls_at(config)]))
    with ChunkWorker(config) as worker:
        for _ in range(3):
            with pytest.raises(WorkerDied, match="SIGKILL"):
                worker.train(CHUNK, None)
        assert worker.train(CHUNK, None).trained_to == 16
        assert worker.restores == [8, 8, 8, 4]
    folder = Path(config.checkpoint_dir) / "quarantine"
    notes = [json.loads(file.read_text()) for file in folder.glob("*.reason.json")]
    assert len(notes) == 2
    assert all(note["reason"].count("was killed by SIGKILL") == 3 for note in notes)

    whole = recipe(tmp_path / "whole", tmp_path / "none")
    with ChunkWorker(whole) as worker:
        worker.train(CHUNK, None)
    assert_same_tensors(load(config), load(whole))


def test_if_the_one_before_dies_too_the_chunk_fails_for_good(
    trained: tuple[SpeedtronicConfig, Path],
) -> None:
    config, deadly = trained
    deadly.write_text(json.dumps(list(range(1, 100))))
    with ChunkWorker(config) as worker:
        for _ in range(3):
            with pytest.raises(WorkerDied):
                worker.train(CHUNK, None)
        with pytest.raises(WorkerFailed, match="from step 4 died as well") as caught:
            worker.train(CHUNK, None)
        assert not caught.value.retryable
    assert newest(config).step == 4


def test_the_only_good_one_is_never_set_aside(
    trained: tuple[SpeedtronicConfig, Path],
) -> None:
    config, deadly = trained
    (Path(config.checkpoint_dir) / "step_000000000004.pt").write_bytes(b"rot")
    before = names(Path(config.checkpoint_dir))
    deadly.write_text(json.dumps([calls_at(config)]))
    with ChunkWorker(config) as worker:
        for _ in range(3):
            with pytest.raises(WorkerDied):
                worker.train(CHUNK, None)
        with pytest.raises(WorkerFailed, match="no good checkpoint before it") as caught:
            worker.train(CHUNK, None)
        assert not caught.value.retryable
    assert names(Path(config.checkpoint_dir)) == before
