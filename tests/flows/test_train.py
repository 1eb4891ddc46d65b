"""The flow: chunks as tasks, retried as told, and the store as the only truth."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    LogFilter,
    LogFilterFlowRunId,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
)

from speedtronic.checkpoint import RunLock, layout
from speedtronic.errors import ConfigError, WorkerDied, WorkerFailed
from speedtronic.flows.keys import slug
from speedtronic.flows.train import train
from speedtronic.runtime import train_from_config
from speedtronic.storage.lock import read_lock_record
from tests.flows.serving import Serving, artifacts, events, train_alone, until
from tests.recipes import assert_same_tensors, exact_recipe, load, newest
from tests.tiny import tiny_config
from tests.waiting import Processes, last_step, wait_until

ROOT = Path(__file__).parents[2]


@contextmanager
def killing(directory: Path, at_steps: list[int]) -> Iterator[list[int]]:
    """SIGKILL a training process at each of these steps; yields the pids killed so far."""
    killed: list[int] = []
    done = threading.Event()

    def watch() -> None:
        for step in at_steps:
            while not done.wait(0.002):
                pid = read_lock_record(directory / "checkpoints").get("pid")
                ready = isinstance(pid, int) and pid not in killed and _alive(pid)
                if ready and last_step(directory / "metrics.jsonl") >= step:
                    os.kill(pid, signal.SIGKILL)  # type: ignore[arg-type]
                    killed.append(pid)  # type: ignore[arg-type]
                    break

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()


def _alive(pid: Any) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def named(name: str) -> Any:
    return train.with_options(flow_run_name=name)


def recorded(name: str) -> tuple[dict[str, str], list[str]]:
    """What the server knows of a flow run: task run -> state, and its log."""
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[name]))
        )
        of_run = TaskRunFilter(flow_run_id=TaskRunFilterFlowRunId(any_=[run.id]))
        task_runs = client.read_task_runs(task_run_filter=of_run)
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
    return {t.name: t.state_name or "" for t in task_runs}, [log.message for log in logs]


def test_a_killed_worker_is_retried_and_the_end_is_identical(tmp_path: Path) -> None:
    reference = exact_recipe(tmp_path / "reference")
    train_alone(reference)
    config = exact_recipe(tmp_path / "run", **{"chunk.steps": 16, "chunk.retry_delay_s": 0.0})
    with killing(tmp_path / "run", [10, 30]) as killed:
        report = named("killed")(config.to_dict())
    assert len(killed) == 2
    assert [c.trained_to for c in report.chunks] == [16, 32, 48]
    assert report.attempts == 5
    assert all("SIGKILL" in failure for failure in report.failures)
    assert len(report.failures) == 2
    assert report.pointer is not None
    assert report.pointer.state_digest == newest(reference).state_digest
    assert_same_tensors(load(config), load(reference))
    assert report.restores[0] == 0
    assert len(report.restores) == 3

    def logged() -> bool:
        states, log = recorded("killed")
        return (
            states.get("steps 0-16") == "Completed"
            and states.get("steps 32-48") == "Completed"
            and any("step 48/48  loss" in line for line in log)
        )

    assert wait_until(logged, 30), recorded("killed")


def test_running_again_goes_on_from_the_store(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"chunk.steps": 8})
    first = train(config.to_dict(), max_steps=8)
    assert (first.start_step, first.trained_to, len(first.chunks)) == (0, 8, 1)
    second = train(config.to_dict(), max_steps=20)
    assert [(c.start, c.target) for c in second.chunks] == [(8, 16), (16, 20)]
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in (tmp_path / "checkpoints").glob("[!.]*")
        if path.suffix in (".pt", ".json")
    }
    third = train(config.to_dict(), max_steps=20)
    assert (third.start_step, third.trained_to, third.chunks) == (20, 20, [])
    assert third.pointer == second.pointer
    for path, (content, mtime) in before.items():
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (content, mtime)
    reference = exact_recipe(tmp_path / "reference")
    train_alone(reference, max_steps=20)
    assert newest(config).state_digest == newest(reference).state_digest


def test_a_fresh_run_s_target_beyond_the_horizon_becomes_it(tmp_path: Path) -> None:
    config = tiny_config(tmp_path)
    assert train(config.to_dict(), max_steps=12).notes == []
    assert load(config)["scheduler"]["max_steps"] == 12
    longer = train(config.to_dict(), max_steps=16)
    assert any("steps 13 to 16 are past the schedule's horizon, 12" in n for n in longer.notes)
    assert load(config)["scheduler"]["max_steps"] == 12


def test_steps_past_the_last_multiple(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    report = named("tail")(config.to_dict(), max_steps=10)
    assert report.pointer is not None
    assert (report.pointer.step, report.trained_to) == (8, 10)
    assert wait_until(lambda: any("steps 9 to 10 will be" in x for x in recorded("tail")[1]), 30)
    config = config.override({"checkpoint.save_on_stop": True})
    report = train(config.to_dict(), max_steps=10)
    assert report.pointer is not None
    assert (report.pointer.step, report.trained_to) == (10, 10)


def test_attempts_without_progress_are_limited(tmp_path: Path) -> None:
    changes = {"checkpoint.every_steps": 40, "chunk.retries": 1, "chunk.retry_delay_s": 0.0}
    config = exact_recipe(tmp_path, **changes)
    with killing(tmp_path, [1, 1, 1, 1]) as killed, pytest.raises(WorkerDied, match="SIGKILL"):
        train(config.to_dict())
    assert len(killed) == 2, "one attempt and one retry"
    assert not list((tmp_path / "checkpoints").glob("step_*"))


def test_attempts_with_progress_are_not(tmp_path: Path) -> None:
    changes = {"chunk.steps": 48, "chunk.retries": 1, "chunk.retry_delay_s": 0.0}
    config = exact_recipe(tmp_path, **changes)
    with killing(tmp_path, [6, 14, 22, 30]) as killed:
        report = train(config.to_dict())
    assert len(killed) == 4
    assert report.trained_to == 48


@pytest.mark.parametrize(
    ("overrides", "error", "said"),
    [
        ({"checkpoint.enabled": False}, ConfigError, "checkpoint.enabled is false"),
        ({"optimizer.lrr": 1}, ConfigError, "did you mean 'lr'"),
        ({"data.text_path": "/nowhere.txt"}, WorkerFailed, "data.text_path"),
    ],
)
def test_a_persons_mistake_is_not_retried(
    overrides: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    config = exact_recipe(tmp_path / "run")
    with pytest.raises(error, match=said):
        train(config.to_dict(), overrides=overrides)
    assert not (tmp_path / "run").exists()


def test_overrides_and_paths(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(exact_recipe(tmp_path / "ignored").to_yaml())
    overrides = {"run.max_steps": 4, "name": "renamed"}
    report = train(str(file), output_dir=str(tmp_path / "used"), overrides=overrides)
    assert (report.name, report.trained_to) == ("renamed", 4)
    assert report.output_dir == str(tmp_path / "used")
    assert load(exact_recipe(tmp_path / "used"))["scheduler"]["max_steps"] == 48, "a target only"
    assert not (tmp_path / "ignored").exists()


FLOW = """
import sys
sys.path.insert(0, sys.argv[1])
from speedtronic.flows.train import train
train(sys.argv[2], max_steps=100_000)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_flow_that_is_ended_leaves_no_process_and_no_lock(
    number: signal.Signals, served: Serving, tmp_path: Path
) -> None:
    changes = {"data.num_workers": 2, "checkpoint.save_on_stop": True}
    config = exact_recipe(tmp_path / "run", **changes)
    (tmp_path / "given.yaml").write_text(config.to_yaml())
    command = [sys.executable, "-c", FLOW, str(ROOT), str(tmp_path / "given.yaml")]
    metrics = tmp_path / "run/metrics.jsonl"
    # On the tests' own server: one that the flow started itself would outlive its SIGKILL.
    with subprocess.Popen(command, env=served.client_env) as flow_process:
        assert wait_until(lambda: last_step(metrics) >= 10, 120)
        worker = read_lock_record(config.checkpoint_dir)["pid"]
        assert isinstance(worker, int)
        with Processes([worker]) as processes:
            flow_process.send_signal(number)
            assert processes.end_within()
    lock = RunLock(config.checkpoint_dir)
    lock.acquire()
    lock.release()
    if number == signal.SIGTERM:
        assert newest(config).step == last_step(metrics), "saved to the very step"
    reached = newest(config).step + 4
    assert train_from_config(config, resume=True, max_steps=reached).steps == reached


def test_what_happened_is_shown_and_written(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"chunk.steps": 16, "chunk.retry_delay_s": 0.0})
    with killing(tmp_path, [22]):
        named("shown")(config.to_dict(), max_steps=32)
    report = json.loads((tmp_path / "report.json").read_text())
    steps = [f"{chunk['start']}-{chunk['target']}" for chunk in report["chunks"]]
    assert steps == ["0-16", "16-32"]
    assert report["chunks"][1]["signals"] == ["SIGKILL"]
    assert report["chunks"][1]["attempts"] == 2
    (restart,) = report["restarts"]
    assert restart in (16, 20)
    assert [c["step"] for c in report["checkpoints"]] == sorted(
        (layout.step_of(p.name) for p in (tmp_path / "checkpoints").glob("*.pt")), reverse=True
    )
    text = (tmp_path / "report.md").read_text()
    assert "step 32 of 32" in text
    assert "| 16-32 | 32 | 2 | SIGKILL |" in text
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    key = slug(str(tmp_path))
    (progress,) = artifacts(f"progress-{key}")
    assert float(str(progress.data)) == 100.0
    rows = json.loads(str(artifacts(f"chunks-{key}")[0].data))
    assert [row["steps"] for row in rows] == steps
    assert str(artifacts(f"loss-{key}")[0].data).startswith("data:image/png;base64,")

    def told(event: str) -> list[dict[str, Any]]:
        mine = f"speedtronic.run.{key}"
        return [e for e in events(event) if e["resource"]["prefect.resource.id"] == mine]

    assert until(lambda: bool(told("speedtronic.chunk.retried")), 30)
    (retried,) = told("speedtronic.chunk.retried")
    assert retried["task"] == "steps 16-32"
    assert "SIGKILL" in retried["failure"]
    # What the killed process had committed last it may have had no time to tell.
    saved = set(range(4, 33, 4)) - {restart}
    tells = "speedtronic.checkpoint.saved"
    assert until(lambda: saved <= {event["step"] for event in told(tells)}, 30), told(tells)


def test_the_report_goes_on_where_an_earlier_flow_run_ended(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"chunk.steps": 8})
    train(config.to_dict(), max_steps=8)
    train(config.to_dict(), max_steps=16)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [chunk["target"] for chunk in report["chunks"]] == [8, 16]
    assert (report["restores"], report["restarts"]) == ([0, 8], [8])


def test_what_was_damaged_is_mended_before_the_first_chunk_and_told(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path)
    train_from_config(config, max_steps=12)
    payload = tmp_path / "checkpoints" / layout.payload_name(12)
    payload.write_bytes(payload.read_bytes()[:-1])
    report = named("mended")(config.to_dict(), max_steps=16)
    assert (report.start_step, report.trained_to) == (8, 16)
    mine = f"speedtronic.run.{slug(str(tmp_path))}"

    def told() -> set[str]:
        return {
            event["file"]
            for event in events("speedtronic.checkpoint.quarantined")
            if event["resource"]["prefect.resource.id"] == mine
        }

    files = {f"quarantine/{name(12)}" for name in (layout.payload_name, layout.manifest_name)}
    assert until(lambda: told() == files, 30), told()
    assert wait_until(lambda: "checklist" in recorded("mended")[0], 30)


def test_whoever_finds_the_run_locked_is_refused_at_once(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path, **{"chunk.retry_delay_s": 60.0})
    train_from_config(config, max_steps=4)
    lock = RunLock(config.checkpoint_dir)
    lock.acquire()
    try:
        with pytest.raises(WorkerFailed, match=f"pid {os.getpid()}"):
            train(config.to_dict())
    finally:
        lock.release()
