"""A secret in a configuration is used, and is not in anything that is written or said."""

import json
import logging
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import layout
from speedtronic.cli import main
from speedtronic.errors import ConfigError, WorkerFailed
from speedtronic.plan import Chunk
from speedtronic.recovery import run_checklist
from speedtronic.runtime import progress as console
from speedtronic.runtime import train_from_config
from speedtronic.worker.chunk import ChunkWorker
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


DATA = """
import torch
from torch.utils.data import Dataset

class Samples(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = (index + torch.arange(17)) % 256
        return {"input_ids": row[:-1], "labels": row[1:]}

def make(password):
    if password != "hunter2-0123456789":
        raise ValueError(f"not the password: {password}")
    return Samples()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a factory of data that needs a password."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guarded.py").write_text(DATA)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guarded", raising=False)
    return tmp_path


def guarded(here: Path, password: str, **changes: Any) -> SpeedtronicConfig:
    own = {"data.dataset": "guarded:make", "data.num_tokens": None}
    config = tiny_config(here / "run", **own, **{"data.dataset_args.password": password})
    return config.override({"run.max_steps": 4, **changes})


def drill(config: SpeedtronicConfig | None = None) -> Any:
    """The finding of the drill `replay` of the run in this directory."""
    report = run_checklist("run", drill="replay", config=config)
    return next(finding for finding in report.findings if finding.check == "replay")


def test_a_reference_is_stored_and_drilled_and_its_value_is_nowhere(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = guarded(here, "${DB_PASSWORD}", **{"logging.file": "run.log"})
    (here / "run.json").write_text(config.model_dump_json(exclude_unset=True))
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    assert main(["train", "--config", "run.json"]) == 2
    said = "data.dataset_args.password: the environment variable DB_PASSWORD is not set"
    assert said in capsys.readouterr().err
    assert not (here / "run").exists()

    monkeypatch.setenv("DB_PASSWORD", SECRET)
    assert main(["train", "--config", "run.json"]) == 0
    assert "${DB_PASSWORD}" in (here / "run" / "config.yaml").read_text()
    assert load(config)["config"]["data"]["dataset_args"] == {"password": "${DB_PASSWORD}"}
    assert holding(here / "run") == [] and SECRET not in "".join(capsys.readouterr())
    assert drill().status == "ok"
    assert main(["train", "--config", "run.json", "--resume", "--set", "run.max_steps=6"]) == 0
    assert main(["verify", "run"]) == 0  # which needs no value
    monkeypatch.delenv("DB_PASSWORD")
    assert main(["verify", "run"]) == 0
    missing = drill()
    assert missing.status == "failed" and said in missing.found


def test_a_blanked_value_is_given_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    literal, reference = guarded(here, SECRET), guarded(here, "${DB_PASSWORD}")
    train_from_config(literal)
    assert holding(here / "run") == []
    blanked = drill()
    assert blanked.status == "failed"
    assert blanked.found.startswith("data.dataset_args.password blanked (***)")
    assert "--config FILE" in blanked.action and "${NAME}" in blanked.action
    stored = SpeedtronicConfig.load(here / "run" / "config.yaml")
    with pytest.raises(ConfigError, match=r"data\.dataset_args\.password is blanked"):
        train_from_config(stored, resume=True)

    assert drill(reference).status == "ok"
    for target, config in ((6, reference), (8, literal)):
        assert train_from_config(config, resume=True, max_steps=target).steps == target
    assert "history" not in load(literal) or load(literal)["history"] == []


def test_an_error_that_repeats_a_secret_is_shown_without_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = guarded(here, "other-0123456789")
    with pytest.raises(ConfigError, match=r"guarded:make.*ValueError: not the password: .*\*\*\*"):
        train_from_config(config)
    (here / "run.json").write_text(config.model_dump_json(exclude_unset=True))
    assert main(["train", "--config", "run.json", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and "other-0123456789" not in said
    with pytest.raises(WorkerFailed) as caught, ChunkWorker(config) as worker:
        worker.restore()
    assert "not the password" in str(caught.value) and "other-0" not in str(caught.value)


def test_log_lines_are_without_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SpeedtronicConfig.from_dict({"model": {"name": "m:f", "api_key": SECRET}})
    console.configure_logging("INFO", tmp_path / "log", console.terminal_handler())
    log = logging.getLogger("speedtronic.somewhere")
    try:
        raise ValueError(f"from within: {SECRET}")
    except ValueError:
        log.exception("with %s and %s", SECRET, f"s3://me:{SECRET}@host")
    said, written = capsys.readouterr().err, (tmp_path / "log").read_text()
    assert SECRET not in said + written
    for text in (said, written):
        assert "with *** and s3://***@host" in text and "from within: ***" in text


def test_the_search_would_notice(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    torch.save({"config": {"api_key": SECRET}}, tmp_path / "deep" / "a.pt")
    assert holding(tmp_path) == [str(tmp_path / "deep" / "a.pt")]
