"""The commands for a run that is not being trained, as a person types them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from speedtronic.checkpoint import CheckpointStore, RunLock, open_storage
from speedtronic.checkpoint.layout import manifest_name, payload_name
from speedtronic.cli import main
from speedtronic.runtime import train_from_config
from tests.recipes import newest
from tests.tiny import names, tiny_config, tiny_file, tree

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at step 6, with checkpoints of steps 2, 4 and 6."""
    output_dir = tmp_path_factory.mktemp("begun") / "run"
    train_from_config(tiny_config(output_dir), max_steps=6)
    return output_dir


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(begun, tmp_path / "run"))


def truncate(run: Path, step: int) -> None:
    path = run / "checkpoints" / payload_name(step)
    path.write_bytes(path.read_bytes()[:-4096])


# --- verify, recover ---


def test_verify_and_recover(run: Path, capsys: Capture) -> None:
    truncate(run, 6)
    before = tree(run)
    assert main(["verify", str(run), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["selected"]) == (False, 4)
    assert {finding["status"] for finding in found["findings"]} == {"ok", "warning", "failed"}
    assert found["findings"][0].keys() == {
        "check",
        "status",
        "path",
        "found",
        "expected",
        "action",
    }
    assert tree(run) == before

    assert main(["recover", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{run}: healthy; a resume would start from step 4\n")
    assert names(run / "checkpoints" / "quarantine")[1].startswith(payload_name(6)[:-3])
    assert main(["verify", str(run)]) == 0


def test_verify_tells_what_to_type(run: Path, capsys: Capture) -> None:
    (run / "checkpoints" / "latest.json").unlink()
    assert main(["verify", f"{run.parent}/r*n"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0].startswith(f"{run}: NOT HEALTHY; ")
    assert f"\nto do: speedtronic recover {run}\n" in said.out
    assert said.err == ""


def test_verify_with_another_configuration(run: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tiny_file(tmp_path / "other.yaml", run, **{"optimizer.lr": 1e-3})
    arguments = ["verify", str(run), "--config", file, "--drill", "replay", "--json"]
    assert main(arguments) == 1
    last = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (last["check"], last["status"]) == ("replay", "failed")
    assert "optimizer.lr: the run has 0.0003, configured is 0.001" in last["found"]


def test_several_runs(run: Path, capsys: Capture) -> None:
    other = run.with_name("other")
    shutil.copytree(run, other)
    assert main(["verify", str(run), str(other), "--json"]) == 0
    assert [r["run_dir"] for r in json.loads(capsys.readouterr().out)] == [str(run), str(other)]


@pytest.mark.parametrize("command", ["verify", "recover"])
def test_bad_input_is_one_line(tmp_path: Path, capsys: Capture, command: str) -> None:
    for given in ("missing", "nothing*", "file"):
        (tmp_path / "file").write_text("")
        assert main([command, str(tmp_path / given)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert len(said.err.splitlines()) == 1 and given in said.err
    assert main([command, str(tmp_path)]) == 1
    assert "it holds no run" in capsys.readouterr().out


# --- rollback ---


def test_rollback_moves_and_goes_on(run: Path, capsys: Capture, tmp_path: Path) -> None:
    whole = tiny_config(tmp_path / "whole")
    train_from_config(whole)
    content = (run / "checkpoints" / payload_name(6)).read_bytes()
    assert main(["rollback", str(run), "--to-step", "2"]) == 0
    said = capsys.readouterr().out
    assert f"moved to quarantine/{payload_name(6)}" in said
    assert "a resume starts from step 2" in said
    aside = run / "checkpoints" / "quarantine"
    assert (aside / payload_name(6)).read_bytes() == content
    reason = json.loads((aside / f"{manifest_name(4)}.reason.json").read_text())["reason"]
    assert reason == "rolled back to step 2"
    config = tiny_config(run)
    assert train_from_config(config, resume=True).metrics["updates"] == 6
    assert newest(config).state_digest == newest(whole).state_digest


def test_rollback_is_refused(run: Path, capsys: Capture) -> None:
    truncate(run, 2)
    before = tree(run, without=(".lock",))
    for step, why in (("3", "no checkpoint of step 3"), ("2", "payload has")):
        assert main(["rollback", str(run), "--to-step", step]) == 1
        assert why in capsys.readouterr().err
        assert tree(run, without=(".lock",)) == before
    lock = RunLock(str(run / "checkpoints"))
    lock.acquire()
    try:
        assert main(["rollback", str(run), "--to-step", "4"]) == 1
        assert "being trained by pid" in capsys.readouterr().err
        assert tree(run, without=(".lock",)) == before
    finally:
        lock.release()


def test_rollback_leaves_other_runs_alone(run: Path, tmp_path: Path) -> None:
    other = tiny_config(tmp_path / "other", **{"run.seed": 5})
    train_from_config(other)
    for name in (payload_name(8), manifest_name(8)):
        shutil.copy(Path(other.checkpoint_dir) / name, run / "checkpoints")
    assert main(["rollback", str(run), "--to-step", "4"]) == 0
    assert payload_name(8) in names(run / "checkpoints")
    assert newest(tiny_config(run)).run_id == newest(other).run_id
    assert payload_name(6) in names(run / "checkpoints" / "quarantine")


# --- export ---


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    store = CheckpointStore(open_storage(str(run / "checkpoints")), keep_last=None)
    model: dict[str, torch.Tensor] = store.load_step(step).state["model"]
    return model


def test_export(run: Path, tmp_path: Path, capsys: Capture) -> None:
    before = tree(run)
    target = tmp_path / "model.safetensors"
    target.write_text("former")
    assert main(["export", str(run), "--to", str(target)]) == 0
    assert "tensors of step 6" in capsys.readouterr().out
    stored, expected = load_file(target), weights(run, 6)
    assert stored.keys() == expected.keys()  # the tied head too
    assert all(torch.equal(stored[name], expected[name]) for name in expected)
    with safe_open(target, "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "step": "6",
            "run_id": newest(tiny_config(run)).run_id,
            "state_digest": newest(tiny_config(run)).state_digest,
        }
    assert tree(run) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "run"]


def test_a_run_begins_with_what_was_exported(run: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "model.safetensors")
    assert main(["export", str(run), "--to", target, "--step", "4"]) == 0
    config = tiny_config(tmp_path / "new")
    train_from_config(config, init_from=target, max_steps=2)
    assert newest(config).history[0]["init_from"] == "model.safetensors"


def test_export_takes_the_newest_good_one_or_none(
    run: Path, tmp_path: Path, capsys: Capture
) -> None:
    truncate(run, 6)
    target = str(tmp_path / "model.safetensors")
    assert main(["export", str(run), "--to", target]) == 0
    assert "tensors of step 4" in capsys.readouterr().out
    Path(target).unlink()
    for options, code, why in [
        (["--to", target, "--step", "6"], 1, "payload has"),
        (["--to", target, "--step", "5"], 1, "no checkpoint of step 5"),
        (["--to", str(tmp_path / "model.pt")], 2, "ends with .safetensors"),
        (["--to", str(tmp_path / "missing/m.safetensors")], 2, "is not a directory"),
    ]:
        assert main(["export", str(run), *options]) == code
        assert why in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# --- compare ---


def compared(capsys: Capture, *arguments: Any) -> tuple[int, str]:
    code = main(["compare", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_compare(run: Path, tmp_path: Path, capsys: Capture) -> None:
    payload = run / "checkpoints" / payload_name(6)
    other = tiny_config(tmp_path / "other")
    train_from_config(other, max_steps=6)
    digest = newest(other).state_digest
    for b in (payload, other.run.output_dir):
        assert compared(capsys, run, b) == (
            0,
            f"the same: {run} at step 6 and {b} at step 6\n{digest}\n",
        )
    code, said = compared(capsys, run, run / "checkpoints" / payload_name(4))
    assert code == 1
    assert "values differ, first model/blocks.0.attention" in said
    assert ": max abs difference " in said


def test_compare_of_nothing(run: Path, tmp_path: Path, capsys: Capture) -> None:
    code, said = compared(capsys, run, tmp_path / "missing")
    assert (code, "missing is not a directory" in said) == (2, True)
    (tmp_path / "rot.pt").write_bytes(b"rot")
    assert compared(capsys, run, tmp_path / "rot.pt")[0] == 1
