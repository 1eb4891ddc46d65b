"""Drills prove a resume, or name what stands in its way; the run is as it was after them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.checkpoint.layout import manifest_name, payload_name
from speedtronic.recovery import Finding, LoadProcess, run_checklist
from speedtronic.run_directory import record_place
from speedtronic.runtime import train_from_config
from tests.recipes import newest
from tests.tiny import tiny_config, tree


@pytest.fixture(scope="module")
def loader() -> Iterator[LoadProcess]:
    with LoadProcess() as process:
        yield process


def configure(root: Path) -> SpeedtronicConfig:
    """The shape of configs/stdlib.yaml, small: real text, dropout, a shuffle, two workers."""
    return tiny_config(
        root / "run",
        **{
            "data.text_path": str(root / "corpus.txt"),
            "data.num_tokens": None,
            "data.num_workers": 2,
            "optimizer.grad_clip": 1.0,
        },
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at step 6, with its corpus beside it."""
    root = tmp_path_factory.mktemp("begun")
    (root / "corpus.txt").write_text("It was a bright cold day in April, and so on. " * 40)
    train_from_config(configure(root), max_steps=6)
    return root


@pytest.fixture
def root(begun: Path, tmp_path: Path) -> Path:
    """A copy of it whose configuration names the copied corpus."""
    root = Path(shutil.copytree(begun, tmp_path / "root"))
    config = configure(root).override({"scheduler.max_steps": 8})
    (root / "run" / "config.yaml").write_text(config.to_yaml())
    record_place(root / "run", newest(config).run_id)
    return root


def drilled(root: Path, drill: str, loader: LoadProcess, **options: Any) -> Finding:
    """What the drill found; the checklist before it found nothing, and nothing was written."""
    before = tree(root)
    report = run_checklist(str(root / "run"), drill=drill, loader=loader, **options)
    assert tree(root) == before
    assert {f.status for f in report.findings[:-1]} <= {"ok", "warning"}
    assert report.healthy == (report.findings[-1].status != "failed")
    assert report.findings[-1].check == drill
    return report.findings[-1]


def test_load_shows_what_was_loaded(root: Path, loader: LoadProcess) -> None:
    found = drilled(root, "load", loader)
    assert found.status == "ok"
    assert newest(configure(root)).state_digest in found.found


def test_replay_ends_in_the_same_state(root: Path, loader: LoadProcess) -> None:
    found = drilled(root, "replay", loader)
    assert (found.status, found.action) == ("ok", "")
    assert newest(configure(root)).state_digest in found.found


def test_replay_notices_a_changed_byte_of_the_corpus(root: Path, loader: LoadProcess) -> None:
    corpus = root / "corpus.txt"
    corpus.write_bytes(b"i" + corpus.read_bytes()[1:])
    found = drilled(root, "replay", loader)
    assert found.status == "failed"
    assert "data.fingerprint: the run has xxh3_128:" in found.found


def test_replay_notices_another_learning_rate(root: Path, loader: LoadProcess) -> None:
    other = configure(root).override({"optimizer.lr": 1e-3, "scheduler.max_steps": 8})
    found = drilled(root, "replay", loader, config=other)
    assert found.status == "failed"
    assert "first model/blocks.0.attention" in found.found
    assert ": max abs difference " in found.found
    assert "causes: optimizer.lr: the run has 0.0003, configured is 0.001" in found.found


def test_replay_names_the_first_tensor_and_what_is_known(root: Path, loader: LoadProcess) -> None:
    """As after training on with another number of threads, and in other bits."""
    store = CheckpointStore(open_storage(str(root / "run/checkpoints")), keep_last=None)
    checkpoint = store.load_step(6)
    store.run_id = checkpoint.manifest.run_id
    store.config_fingerprint = checkpoint.manifest.config_fingerprint
    weight: torch.Tensor = checkpoint.state["model"]["blocks.0.mlp.down.weight"]
    weight[1, 2] += 0.25
    checkpoint.state["environment"]["threads"] = 64
    for name in (payload_name(6), manifest_name(6)):
        (root / "run" / "checkpoints" / name).unlink()
    store.save(checkpoint.state)
    found = drilled(root, "replay", loader)
    assert found.status == "failed"
    assert "first model/blocks.0.mlp.down.weight: max abs difference 0.25;" in found.found
    assert found.found.startswith("1 of ")
    assert found.found.endswith("causes: threads was 64, is 1")


def test_replay_goes_along_with_a_change_that_was_meant(root: Path, loader: LoadProcess) -> None:
    changed = configure(root).override({"optimizer.lr": 1e-3})
    train_from_config(changed, resume=True, allow_changes=["optimizer.lr"])
    found = drilled(root, "replay", loader)
    assert found.status == "ok", found.found


def test_replay_needs_two_checkpoints(root: Path, loader: LoadProcess) -> None:
    for step in (2, 4):
        for name in (payload_name(step), manifest_name(step)):
            (root / "run" / "checkpoints" / name).unlink()
    found = drilled(root, "replay", loader)
    assert (found.status, found.expected) == ("warning", "two checkpoints")


def test_replay_says_that_the_checkpoint_before_is_bad(root: Path, loader: LoadProcess) -> None:
    path = root / "run" / "checkpoints" / payload_name(4)
    path.write_bytes(path.read_bytes()[:-9])
    found = drilled(root, "replay", loader)
    assert found.status == "failed"
    assert found.found.startswith("step 4 does not load: payload has ")


def test_resume_trains_on(root: Path, loader: LoadProcess) -> None:
    found = drilled(root, "resume", loader)
    assert found.status == "ok", found
    assert "over steps 7 to 11" in found.found
    assert "the last 6 logged losses" in found.expected


def test_resume_notices_a_loss_out_of_line(root: Path, loader: LoadProcess) -> None:
    metrics = root / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if line["event"] == "train_step":
            line["loss"] = 1 + line["step"] / 1000
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = drilled(root, "resume", loader)
    assert found.status == "failed"
    assert found.expected.startswith("at most 1.05")


def test_a_resume_that_would_be_refused_fails(root: Path, loader: LoadProcess) -> None:
    (root / "corpus.txt").unlink()
    for drill in ("resume", "replay"):
        found = drilled(root, drill, loader)
        assert found.status == "failed"
        assert "corpus.txt" in found.found


@pytest.mark.parametrize("drill", ["load", "replay", "resume"])
def test_without_a_good_checkpoint_there_is_nothing_to_drill(
    root: Path, loader: LoadProcess, drill: str
) -> None:
    for step in (2, 4, 6):
        (root / "run" / "checkpoints" / payload_name(step)).write_bytes(b"")
    report = run_checklist(str(root / "run"), drill=drill, loader=loader)
    assert (report.findings[-1].check, report.findings[-1].status) == (drill, "failed")
    assert report.findings[-1].found == "nothing to start from"
