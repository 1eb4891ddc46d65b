"""Runs of 2.0 that go on here: `speedtronic train --resume --trust-legacy`."""

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.checkpoint import CheckpointStore, open_storage
from speedtronic.cli import main
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import (
    CheckpointError,
    DriftError,
    LegacyStoreError,
    NoValidCheckpointError,
    RestoreError,
)
from speedtronic.runtime import build_runtime, train_from_config
from speedtronic.storage.local import LocalStorage
from tests.legacy.old_runs import (
    END,
    FILES,
    STOPPED_AT,
    config_for,
    new_losses,
    old_losses,
    old_run,
)
from tests.legacy.test_payload import Evil, trusted
from tests.tiny import tree

SLACK = 1e-5
OWN_FILES = (".lock", "config.yaml", "metrics.jsonl")  # not the checkpoints'
Log = pytest.LogCaptureFixture


def take_up(config: SpeedtronicConfig) -> int:
    """Take the run up and train nothing; returns the step."""
    with build_runtime(config, resume=True, trust_legacy=True) as runtime:
        return runtime.state.step


def digest(config: SpeedtronicConfig) -> str:
    checkpoint = CheckpointStore(open_storage(config.checkpoint_dir), keep_last=None).select()
    assert checkpoint is not None
    return checkpoint.manifest.state_digest


def old_bytes(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (FILES / name / "checkpoints").iterdir()}


def aside(config: SpeedtronicConfig) -> dict[str, bytes]:
    folder = Path(config.checkpoint_dir) / "legacy"
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def truncate(config: SpeedtronicConfig, step: int) -> None:
    path = Path(config.checkpoint_dir) / f"step_{step:012d}.pt"
    path.write_bytes(path.read_bytes()[:20_000])


# --- going on ---


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_losses_are_those_of_2_0_uninterrupted(name: str, tmp_path: Path) -> None:
    config = old_run(name, tmp_path)
    result = train_from_config(config, resume=True, trust_legacy=True)
    assert (result.steps, result.samples) == (END, 4 * END)
    new, old = new_losses(config), old_losses(name)
    assert list(new) == list(range(STOPPED_AT[name] + 1, END + 1))
    for step, loss in new.items():
        assert loss == pytest.approx(old[step], abs=SLACK), step


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_a_later_resume_goes_on_in_the_same_way(name: str, tmp_path: Path) -> None:
    whole = old_run(name, tmp_path / "whole")
    train_from_config(whole, resume=True, trust_legacy=True)
    cut = old_run(name, tmp_path / "cut")
    for target in (6, 8, END):  # the flag is needed once, and does no harm again
        train_from_config(cut, resume=True, trust_legacy=target == 6, max_steps=target)
    for step, loss in new_losses(cut).items():
        assert loss == pytest.approx(old_losses(name)[step], abs=SLACK), step
    assert digest(cut) == digest(whole)


def test_any_step_of_2_0_can_be_where_it_goes_on(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    (Path(config.checkpoint_dir) / f"step_{4:012d}.pt").unlink()
    train_from_config(config, resume=True, trust_legacy=True)
    new = new_losses(config)
    assert list(new) == list(range(3, END + 1))
    assert new == pytest.approx({step: old_losses("tied")[step] for step in new}, abs=SLACK)


def test_what_2_0_never_trained_stays_as_it_is(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    train_from_config(config, resume=True, trust_legacy=True, max_steps=6)
    train_from_config(config, resume=True)
    store = CheckpointStore(open_storage(config.checkpoint_dir), keep_last=None)
    checkpoint = store.select()
    assert checkpoint is not None
    before, after = trusted("tied", 4)["model"], checkpoint.state["model"]
    frozen = checkpoint.state["optimizer"]["inherited"]["frozen"]
    assert len(frozen) == 2 * 7
    assert torch.equal(
        after["blocks.1.mlp.down.weight"], before["transformer.h.1.mlp.down_proj.weight"]
    )
    assert not torch.equal(after["embedding.weight"], before["transformer.wte.weight"])
    [entry] = checkpoint.manifest.history
    assert entry["step"] == 4
    assert entry["taken_up_from"] == "Speedtronic 2.0, step_000000000004.pt"


def test_random_numbers_go_on(tmp_path: Path) -> None:
    with build_runtime(old_run("tied", tmp_path), resume=True, trust_legacy=True) as runtime:
        runtime.state.apply_pending_rng()
        drawn = random.random(), np.random.rand(), torch.rand(1).item()
    old = trusted("tied", 4)["rng"]
    random.setstate(old["python"])
    np.random.set_state(old["numpy"])
    torch.set_rng_state(old["torch"])
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item())


def test_the_schedule_ends_where_it_did(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path, **{"scheduler.max_steps": None, "run.max_steps": 99})
    with build_runtime(config, resume=True, trust_legacy=True) as runtime:
        assert runtime.state.schedule.max_steps == END


def test_a_fresh_run_from_the_weights_trains_everything(tmp_path: Path) -> None:
    config = config_for("untied", tmp_path)
    file = FILES / "untied" / "checkpoints" / f"step_{3:012d}.pt"
    with build_runtime(config, init_from=str(file)) as runtime:
        weight = runtime.state.model.get_parameter("blocks.0.mlp.gate.weight")
        old = trusted("untied", 3)["model"]["transformer.h.0.mlp.gate_proj.weight"]
        assert torch.equal(weight, old)
        runtime.train(2)
        assert not torch.equal(weight, old)


def test_our_payload_opens_as_2_0_opened_its_own(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    train_from_config(config, resume=True, trust_legacy=True)
    file = Path(config.checkpoint_dir) / f"step_{END:012d}.pt"
    state = torch.load(file, map_location="cpu", weights_only=False)
    assert (state["step"], state["samples"], state["tokens"]) == (END, 4 * END, 4 * END * 16)
    assert trusted("tied", 4).keys() <= state.keys()


# --- what is on disk ---


def test_taking_up_keeps_every_old_file(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path, **{"checkpoint.keep_last": 1})
    assert take_up(config) == 4
    folder = Path(config.checkpoint_dir)
    ours = {"latest.json", "step_000000000004.json", "step_000000000004.pt"}
    assert {path.name for path in folder.iterdir()} == {*ours, ".lock", "legacy"}
    assert aside(config) == old_bytes("tied")
    train_from_config(config, resume=True)
    assert aside(config) == old_bytes("tied")


def test_taking_up_happens_once(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    take_up(config)
    before = tree(tmp_path, without=OWN_FILES)
    assert take_up(config) == 4
    assert tree(tmp_path, without=OWN_FILES) == before


def test_the_flag_does_nothing_to_a_run_of_today_or_to_none(tmp_path: Path) -> None:
    config = config_for("tied", tmp_path)
    assert take_up(config) == 0
    train_from_config(config, resume=True, max_steps=2)
    before = tree(tmp_path, without=OWN_FILES)
    assert take_up(config) == 2
    assert tree(tmp_path, without=OWN_FILES) == before


@pytest.mark.parametrize("damage", ["truncated", "empty", "of another step", "not a checkpoint"])
def test_a_damaged_newest_file_steps_back(damage: str, tmp_path: Path, caplog: Log) -> None:
    config = old_run("tied", tmp_path)
    path = Path(config.checkpoint_dir) / f"step_{4:012d}.pt"
    content = {
        "truncated": path.read_bytes()[:30_000],
        "empty": b"",
        "of another step": (path.parent / f"step_{2:012d}.pt").read_bytes(),
        "not a checkpoint": b"{}",
    }[damage]
    path.write_bytes(content)
    train_from_config(config, resume=True, trust_legacy=True)
    new = new_losses(config)
    assert list(new) == list(range(3, END + 1))
    assert new == pytest.approx({step: old_losses("tied")[step] for step in new}, abs=SLACK)
    assert f"{path}: " in caplog.text and "going back to step 2" in caplog.text
    assert aside(config)[path.name] == content


def test_no_good_file_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    truncate(config, 2)
    truncate(config, 4)
    before = tree(tmp_path)
    with pytest.raises(NoValidCheckpointError, match="payload does not load") as caught:
        take_up(config)
    for step in (2, 4):
        assert f"step_{step:012d}.pt: " in str(caught.value)
    assert tree(tmp_path, without=(".lock",)) == before


@pytest.mark.parametrize("pointer", [None, "{}", '{"step": 4'])
def test_the_pointer_of_2_0_is_not_needed(pointer: str | None, tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    path = Path(config.checkpoint_dir) / "latest.json"
    path.unlink() if pointer is None else path.write_text(pointer)
    assert take_up(config) == 4


# --- without the flag ---


def test_without_the_flag_it_is_refused(tmp_path: Path, capsys: Any) -> None:
    config = old_run("tied", tmp_path / "run")
    file = tmp_path / "today.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    before = tree(tmp_path / "run")
    with pytest.raises(LegacyStoreError, match="--trust-legacy"):
        build_runtime(config, resume=True)
    assert main(["train", "--config", str(file), "--resume"]) == 1
    assert "--trust-legacy" in capsys.readouterr().err
    assert tree(tmp_path / "run", without=(".lock",)) == before


@pytest.mark.parametrize("trust", [False, True])
def test_a_crafted_file_is_not_executed(trust: bool, tmp_path: Path) -> None:
    config = old_run("tied", tmp_path / "run")
    trace = tmp_path / "was here"
    for path in Path(config.checkpoint_dir).glob("*.pt"):
        torch.save({**trusted("tied", 4), "coordinator": Evil(trace)}, path)
    before = tree(tmp_path / "run")
    with pytest.raises(CheckpointError):
        build_runtime(config, resume=True, trust_legacy=trust)
    assert not trace.exists()
    assert tree(tmp_path / "run", without=(".lock",)) == before


def test_the_command_takes_a_run_up(tmp_path: Path, capsys: Any) -> None:
    config = old_run("untied", tmp_path / "run")
    file = tmp_path / "today.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    taking_up = ["train", "--config", str(file), "--resume", "--trust-legacy"]
    assert main([*taking_up, "--set", "run.max_steps=1"]) == 0  # takes it up, trains nothing
    assert capsys.readouterr().out.splitlines()[-1].startswith("step 3  samples 12  ")
    assert main(["train", "--config", str(file), "--resume"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"step {END}  samples {4 * END}  ")


# --- what does not go on ---


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("muon", {}, "0's muon"),
        ("tied", {"optimizer.name": "muon"}, "optimizer.name to be 'adamw', not 'muon'"),
        ("tied", {"model.d_model": 16}, r"embedding.weight: stored \[256, 8\]"),
        ("tied", {"model.tie_weights": False, "model.n_layer": 1}, "blocks.1.mlp.up.weight"),
    ],
)
def test_what_cannot_go_on_is_refused_and_nothing_changed(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = old_run(name, tmp_path, **changes)
    before = tree(tmp_path)
    with pytest.raises(RestoreError, match=message):
        take_up(config)
    assert tree(tmp_path, without=(".lock",)) == before


def test_a_cautious_run_is_refused(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    state = trusted("tied", 4)
    state["config"]["optimizer"]["cautious"] = True
    torch.save(state, Path(config.checkpoint_dir) / f"step_{4:012d}.pt")
    with pytest.raises(RestoreError, match="0's cautious adamw"):
        take_up(config)


@pytest.mark.parametrize(
    "change", [{"optimizer.lr": 0.5}, {"data.target_batch_size": 8}, {"scheduler.warmup_steps": 1}]
)
def test_the_configuration_is_compared_with_the_one_2_0_stored(
    change: dict[str, Any], tmp_path: Path
) -> None:
    [key] = change
    config = old_run("tied", tmp_path, **change)
    with pytest.raises(DriftError, match=key):
        take_up(config)
    with build_runtime(config, resume=True, allow_changes=[key]) as runtime:
        assert runtime.state.step == 4


# --- what is said ---


def test_the_differences_are_said_in_one_line_each(tmp_path: Path, caplog: Log) -> None:
    config = old_run("tied", tmp_path)
    with build_runtime(config, resume=True, trust_legacy=True) as runtime:
        notes = runtime.notes
    assert [note.partition(",")[0].partition(" (")[0] for note in notes] == [
        "2.0 stored no data position and began its data anew at every resume; this run goes on at "
        "sample 16 of today's order",
        "2.0 never trained 14 of the parameters",
    ]
    assert "--init-from" in notes[1]
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == notes


def test_what_else_differs_is_said_where_it_does(tmp_path: Path) -> None:
    config = old_run("tied", tmp_path)
    state = trusted("tied", 4)
    state["config"]["optimizer"]["grad_clip"] = 1.0
    state["config"]["model"]["dropout"] = 0.1
    state["coordinator"] = {"node_id": "a"}
    torch.save(state, Path(config.checkpoint_dir) / f"step_{4:012d}.pt")
    config = config.override({"optimizer.grad_clip": 1.0, "model.dropout": 0.1})
    with build_runtime(config, resume=True, trust_legacy=True) as runtime:
        said = "\n".join(runtime.notes)
    assert "2.0 clipped by a norm" in said
    assert "applied model.dropout to the attention branch twice" in said
    assert "DumbDiLoCo" in said


# --- crashes ---


class Crash(BaseException):
    """The process ends here."""


EFFECTS = ("create", "sync", "rename", "delete", "make_folder", "sync_folder")


def crash_at(number: int | None, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the effect of that number, and all after it, not happen; returns those that did."""
    done: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(LocalStorage, name)

        def effect(self: LocalStorage, *args: Any) -> Any:
            if len(done) == number:
                raise Crash
            done.append(name)
            return real(self, *args)

        patch.setattr(LocalStorage, name, effect)

    for name in EFFECTS:
        wrap(name)
    return done


def test_a_crash_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    whole = old_run("tied", tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        done = crash_at(None, patch)
        take_up(whole)
    expected, refused = digest(whole), 0
    for number in range(len(done)):
        config = old_run("tied", tmp_path / str(number))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
            crash_at(number, patch)
            take_up(config)
        kept = {**tree_bytes(config), **aside(config)}
        assert kept | old_bytes("tied") == kept, number
        try:
            with build_runtime(config, resume=True) as runtime:
                assert runtime.state.step == 4, number
        except LegacyStoreError:
            refused += 1
        assert take_up(config) == 4
        assert digest(config) == expected, number
        assert aside(config) == old_bytes("tied"), number
    assert 10 < refused < len(done)


def tree_bytes(config: SpeedtronicConfig) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in Path(config.checkpoint_dir).iterdir() if p.is_file()}
