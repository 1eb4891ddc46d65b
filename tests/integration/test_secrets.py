"""A secret in a configuration is used, and is not in anything that is written or said."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import layout
from speedtronic.plan import Chunk
from speedtronic.worker import ChunkWorker
from tests.recipes import load
from tests.tiny import tiny_config

SECRET = "hunter2-0123456789"
MODEL = """
from torch import nn
from torch.nn import functional

class Model(nn.Module):
    def __init__(self, vocab_size, max_seq_len, api_key, source):
        super().__init__()
        assert api_key == "hunter2-0123456789" and "hunter2" in source["url"]
        self.layer = nn.Linear(4, 4)
        self.embedding = nn.Embedding(vocab_size, 4)
        self.head = nn.Linear(4, vocab_size)

    def forward(self, input_ids, labels):
        logits = self.head(self.layer(self.embedding(input_ids)))
        return {"logits": logits, "loss": functional.cross_entropy(logits.mT, labels)}

def make(**given):
    return Model(**given)
"""


def config_of(tmp_path: Path) -> dict[str, Any]:
    base = tiny_config(tmp_path / "run", **{"logging.file": "run.log", "run.max_steps": 4})
    values = base.model_dump(exclude_unset=True)
    values["model"] = {
        "name": "secretive:make",
        "vocab_size": 256,
        "max_seq_len": 16,
        "api_key": SECRET,
        "source": {"url": f"s3://me:{SECRET}@bucket/x", "password": SECRET},
    }
    return values


def holding(folder: Path) -> list[str]:
    """The files below a folder that hold the secret."""
    return [str(p) for p in folder.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]


@pytest.mark.parametrize("how", ["worker", "command"])
def test_a_secret_is_in_nothing_that_a_run_leaves(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "secretive.py").write_text(MODEL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    values = config_of(tmp_path)
    config = SpeedtronicConfig.from_dict(values)
    said: list[str] = []
    if how == "worker":
        with ChunkWorker(
            config, on_log=lambda level, name, message: said.append(message)
        ) as worker:
            result = worker.train(Chunk(0, 4), None)
        said.append(repr(result))
    else:
        (tmp_path / "code" / "run.json").write_text(json.dumps(values))
        ended = subprocess.run(
            [sys.executable, "-m", "speedtronic", "train", "--config", "code/run.json"],
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        said += [ended.stdout, ended.stderr]
        values["model"]["sauce"] = values["model"].pop("source")  # the factory refuses it
        (tmp_path / "code" / "run.json").write_text(json.dumps(values))
        failed = subprocess.run(
            [*ended.args, "--resume", "--debug"], capture_output=True, text=True
        )
        assert failed.returncode != 0
        said += [failed.stdout, failed.stderr]
    assert len(said) > 1
    assert SECRET not in "\n".join(said)

    run = tmp_path / "run"
    there = {path.name for path in run.rglob("*")}
    assert {"config.yaml", "metrics.jsonl", "run.log", layout.POINTER} <= there
    assert {layout.payload_name(4), layout.manifest_name(4)} <= there
    assert holding(run) == []
    # torch stores the records of its zip files as they are, so their bytes have been looked at.
    with zipfile.ZipFile(run / "checkpoints" / layout.payload_name(4)) as payload:
        assert {record.compress_type for record in payload.infolist()} == {zipfile.ZIP_STORED}
    assert load(config)["config"]["model"]["api_key"] == "***"


def test_the_search_would_notice(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    torch.save({"config": {"api_key": SECRET}}, tmp_path / "deep" / "a.pt")
    assert holding(tmp_path) == [str(tmp_path / "deep" / "a.pt")]
