"""Wherever a run lives and whatever that place is called: train, resume and inspect work there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from speedtronic.cli import main
from speedtronic.runtime import train_from_config
from tests.recipes import newest
from tests.tiny import names, tiny_config, tiny_file, tree

NAMES = [
    "plain",
    "with two  spaces",
    "Läufe-ラン-🏃",
    "br[1]x",
    "star*and?mark",
    "100%25",
    "a#b",
    "quote'\"quote",
    "-dash",
    "a:b",
    "deep/er/still",
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny_config(tmp_path_factory.mktemp("reference"), **{"run.max_steps": 4})
    train_from_config(config)
    return newest(config).state_digest


# How the directory at a path is spelled in the configuration; the working directory is its parent.
SPELLED: dict[str, Callable[[Path], str]] = {
    "absolute": str,
    "relative": lambda path: str(path.relative_to(Path.cwd())),
    "with a dot": lambda path: f"./{path.relative_to(Path.cwd())}/",
    "URL": lambda path: f"file://{path}",
}


def train_resume_inspect(
    place: Path, spelled: str, capsys: pytest.CaptureFixture[str], reference: str
) -> None:
    """Two steps, two more after a resume, and a look at them, all by the command line."""
    file = tiny_file(Path("run.yaml"), spelled, **{"run.max_steps": 4})
    assert main(["train", "--config", file, "--set", "run.max_steps=2"]) == 0
    assert main(["train", "--config", file]) == 2  # there is a run already
    assert main(["train", "--config", file, "--resume"]) == 0
    capsys.readouterr()
    assert names(place) == [".lock", "checkpoints", "config.yaml", "metrics.jsonl", "run.json"]
    for directory in (spelled, spelled.rstrip("/") + "/checkpoints"):
        before = tree(place)
        options = ["--json", "--", directory]  # -- for a name that begins with a dash
        assert main(["inspect", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert tree(place) == before
        assert [c["status"] for c in found["checkpoints"]] == ["verified", "verified"]
        assert (found["selected"], found["pointer"]["step"]) == (4, 4)
        assert found["checkpoints"][0]["state_digest"] == reference


@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("name", NAMES)
def test_a_run_lives_anywhere(
    name: str,
    spelling: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reference: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / name
    train_resume_inspect(place, SPELLED[spelling](place), capsys, reference)
    assert names(tmp_path) == sorted(["run.yaml", name.partition("/")[0]])


def test_through_a_link(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reference: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    train_resume_inspect(tmp_path / "real", "link", capsys, reference)
    assert (tmp_path / "link").is_symlink()


def test_a_checkpoint_directory_that_is_a_link(tmp_path: Path, reference: str) -> None:
    (tmp_path / "big disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "big disk")
    config = tiny_config(tmp_path / "run", **{"run.max_steps": 4})
    for target in (2, 4):
        train_from_config(config, resume=True, max_steps=target)
    assert newest(config).state_digest == reference
    assert "step_000000000004.pt" in names(tmp_path / "big disk")


@pytest.mark.parametrize("url", [False, True])
def test_checkpoints_apart_from_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reference: str, url: bool
) -> None:
    apart = tmp_path / "a part"
    directory = f"file://{apart}" if url else str(apart)
    changes = {"checkpoint.directory": directory, "run.max_steps": 4}
    file = tiny_file(tmp_path / "run.yaml", tmp_path / "run", **changes)
    assert main(["train", "--config", file]) == 0
    assert names(tmp_path / "run") == [".lock", "config.yaml", "metrics.jsonl", "run.json"]
    capsys.readouterr()
    assert main(["inspect", "--json", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoints"][0]["state_digest"] == reference


def test_a_run_may_be_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reference: str
) -> None:
    train_from_config(tiny_config(tmp_path / "here"), max_steps=2)
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tiny_config(tmp_path / "there", **{"run.max_steps": 4, "scheduler.max_steps": 8})
    assert train_from_config(moved, resume=True).metrics["updates"] == 2
    assert main(["inspect", "--json", str(tmp_path / "there")]) == 0
    assert json.loads(capsys.readouterr().out)["selected"] == 4
    assert not (tmp_path / "here").exists()
