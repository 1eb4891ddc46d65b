"""The recovery flow: a task for each check, a table for each run, and one line when it fails."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.states import State

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import layout
from speedtronic.errors import UsageError
from speedtronic.flows import recovery as module
from speedtronic.flows.keys import slug
from speedtronic.flows.recovery import recovery
from speedtronic.runtime import train_from_config
from tests.flows.serving import artifacts, events, task_runs, until
from tests.recipes import exact_recipe


@pytest.fixture
def run(tmp_path: Path) -> SpeedtronicConfig:
    config = exact_recipe(tmp_path / "run")
    train_from_config(config, max_steps=12)
    return config


def damage(config: SpeedtronicConfig, step: int) -> None:
    payload = Path(config.checkpoint_dir) / layout.payload_name(step)
    content = bytearray(payload.read_bytes())
    content[len(content) // 2] ^= 1
    payload.write_bytes(content)


def ended(*run_dirs: str, **options: Any) -> State:
    state: Any = recovery(list(run_dirs), return_state=True, **options)
    assert isinstance(state, State)
    return state


def findings(directory: str) -> list[dict[str, str]]:
    return list(json.loads(str(artifacts(f"recovery-{slug(directory)}")[0].data)))


def content(directory: str) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()}


def test_a_healthy_run_is_shown_with_a_task_for_each_check(run: SpeedtronicConfig) -> None:
    directory = run.run.output_dir
    before = content(directory)
    state = ended(directory, drill="load")
    assert state.is_completed(), state.message
    assert content(directory) == before
    checks = {row["check"] for row in findings(directory)}
    assert {"directory", "pointer", "payload", "counters", "target", "load"} <= checks
    assert state.state_details.flow_run_id
    run_id = state.state_details.flow_run_id
    names = {f"{check}: {directory}" for check in checks}
    assert until(lambda: names <= {t.name for t in task_runs(run_id)}, 30)


def test_damage_fails_with_one_line_and_is_mended_on_request(run: SpeedtronicConfig) -> None:
    directory = run.run.output_dir
    damage(run, 12)
    before = content(directory)
    state = ended(directory)
    assert state.is_failed()
    assert state.message and "\n" not in state.message
    for said in (f"{directory} is not healthy", "expected", f"speedtronic recover {directory}"):
        assert said in state.message
    assert content(directory) == before
    assert "failed" in {row["status"] for row in findings(directory)}

    state = ended(directory, repair=True)
    assert state.is_completed(), state.message
    assert "repaired" in {row["status"] for row in findings(directory)}
    assert ended(directory).is_completed()


def test_a_failed_drill_is_an_event(run: SpeedtronicConfig) -> None:
    other = run.override({"optimizer.lr": 1e-2})
    (Path(run.run.output_dir) / "config.yaml").write_text(other.to_yaml())
    state = ended(run.run.output_dir, drill="replay")
    assert state.is_failed()
    resource = f"speedtronic.run.{slug(run.run.output_dir)}"

    def told() -> bool:
        return any(
            event["drill"] == "replay" and event["resource"]["prefect.resource.id"] == resource
            for event in events("speedtronic.drill.failed")
        )

    assert until(told, 30)


def test_a_glob_takes_runs_only(run: SpeedtronicConfig, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    state = ended(f"{tmp_path}/*")
    assert state.is_completed()
    assert state.message == f"healthy: {tmp_path}/run"


@pytest.mark.parametrize("given", ["nothing-*", "nothing"])
def test_a_person_is_told_of_no_run_and_a_schedule_is_not_alarmed(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="output director"):
        recovery([f"{tmp_path}/{given}"])
    monkeypatch.setattr(module, "_scheduled", lambda: True)
    state = ended(f"{tmp_path}/{given}")
    assert state.is_completed()
    assert state.message == f"no run in {tmp_path}/{given} yet"


@pytest.mark.parametrize("drill", ["replay", "resume"])
def test_a_schedule_runs_nothing_of_a_run_that_this_servers_flow_has_not_trained(
    drill: str, run: SpeedtronicConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run.run.output_dir
    report = Path(directory) / "report.json"
    for said in (None, "no id", str(uuid4())):  # of no flow run, and of one that is made up
        if said:
            report.write_text(json.dumps({"flow_run": said}), encoding="utf-8")
        with monkeypatch.context() as scheduled:
            scheduled.setattr(module, "_scheduled", lambda: True)
            assert ended(directory, drill=drill).is_completed()
        assert {row["check"] for row in findings(directory)} & {"load", drill} == {"load"}
    report.unlink()
    assert ended(directory, drill=drill).is_completed()  # a person asks for it
    assert drill in {row["check"] for row in findings(directory)}
