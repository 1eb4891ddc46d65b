"""Deployed as README says, and killed in every way there is: the end is the uninterrupted one's.

What is waited for takes minutes, and little of a processor, so all of it happens at once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.schemas.actions import DeploymentScheduleUpdate, WorkPoolCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Cancelling

from speedtronic import SpeedtronicConfig
from speedtronic.checkpoint import RunLock
from speedtronic.flows.keys import slug
from speedtronic.flows.stopping import children
from speedtronic.runtime import train_from_config
from speedtronic.storage.lock import read_lock_record
from tests.flows.serving import (
    ROOT,
    Serving,
    artifacts,
    client,
    deploy,
    flow_run,
    log_of,
    state_of,
    task_runs,
    train_alone,
    until,
)
from tests.recipes import exact_recipe, newest
from tests.waiting import Processes, last_step, wait_until

NUM_STEPS = 400
KILL_AT = 150  # in the middle of the second chunk
START_S = 240.0  # for a worker to begin, with several at once on a busy machine
BACK_S = 180.0  # what is promised from a kill of the flow to the end
BACK_WITH_WORKER_S = 300.0  # besides, a new worker starts, and nobody reports the crash


def recipe(directory: Path, **changes: Any) -> SpeedtronicConfig:
    settings = {
        "run.max_steps": NUM_STEPS,
        "checkpoint.every_steps": 20,
        "chunk.steps": 100,
        "chunk.retry_delay_s": 0.0,
    }
    return exact_recipe(directory, **{**settings, **changes})


def trainer(config: SpeedtronicConfig) -> int:
    """The process that trains, once it is in the middle of a chunk."""
    metrics = Path(config.run.output_dir) / "metrics.jsonl"
    assert wait_until(lambda: last_step(metrics) >= KILL_AT, START_S)
    pid = read_lock_record(config.checkpoint_dir)["pid"]
    assert isinstance(pid, int)
    return pid


def parent(pid: int) -> int:
    answer = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True)
    return int(answer.stdout)


@dataclass
class Outcome:
    """How a scenario ended."""

    config: SpeedtronicConfig
    run_id: UUID | None = None
    output: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def training_killed(served: Serving, directory: Path) -> Outcome:
    """The command of README; the process that trains gets SIGKILL."""
    config = recipe(directory)
    command = [sys.executable, "-m", "prefect", "deployment", "run", "speedtronic/train", "--watch"]
    with subprocess.Popen(
        [*command, "--param", f"config={json.dumps(config.to_dict())}"],
        env={**served.client_env, "COLUMNS": "400"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as watching:
        os.kill(trainer(config), signal.SIGKILL)
        output, _ = watching.communicate(timeout=START_S)
    return Outcome(config, output=output, facts={"exit code": watching.returncode})


def flow_killed(served: Serving, directory: Path) -> Outcome:
    """The flow's own process gets SIGKILL."""
    config = recipe(directory)
    run_id = deploy(config)
    pid = trainer(config)
    flow = parent(pid)
    with Processes([pid, flow]) as processes:
        os.kill(flow, signal.SIGKILL)
        orphans_ended = processes.end_within()
    back = until(lambda: state_of(run_id) == "Completed", BACK_S)
    return Outcome(config, run_id, facts={"no orphan": orphans_ended, "back": back})


def all_killed(served: Serving, directory: Path) -> Outcome:
    """Worker and flow get SIGKILL together; then there is a new worker."""
    config = recipe(directory)
    run_id: UUID
    with client() as api:
        api.create_work_pool(WorkPoolCreate(name="spare", type="process"))
        known = api.read_deployment_by_name("speedtronic/train")
        api.create_deployment(
            flow_id=known.flow_id,
            name="spare",
            work_pool_name="spare",
            entrypoint=known.entrypoint,
            path=known.path,
            pull_steps=known.pull_steps,
        )

    def worker() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "spare"]
        return subprocess.Popen(command, env=served.client_env, cwd=ROOT, start_new_session=True)

    first = worker()
    try:
        run_id = deploy(config, "speedtronic/spare")
        pid = trainer(config)
        doomed = [first.pid, parent(pid)]
        with Processes([pid, *doomed]) as processes:
            for process in doomed:
                os.kill(process, signal.SIGKILL)
            first.wait()
            orphans_ended = processes.end_within()
    finally:
        first.kill()
    second = worker()
    try:
        back = until(lambda: state_of(run_id) == "Completed", BACK_WITH_WORKER_S)
    finally:
        for child in children(second.pid).values():
            os.killpg(child, signal.SIGKILL)
        second.kill()
        second.wait()
    return Outcome(config, run_id, facts={"no orphan": orphans_ended, "back": back})


def cancelled(served: Serving, directory: Path) -> Outcome:
    """`prefect flow-run cancel` while it trains."""
    config = recipe(directory, **{"run.max_steps": 1_000_000, "checkpoint.save_on_stop": True})
    run_id = deploy(config)
    pid = trainer(config)
    with Processes([pid, parent(pid)]) as processes:
        answer = served.prefect("flow-run", "cancel", str(run_id))
        ended = processes.end_within(35)  # Prefect kills after 30 s
    settled = until(lambda: state_of(run_id) == "Cancelled", 60)
    return Outcome(config, run_id, answer.stdout, {"ended": ended, "settled": settled})


SCENARIOS = {f.__name__: f for f in (training_killed, flow_killed, all_killed, cancelled)}


@pytest.fixture(scope="module")
def outcomes(
    served: Serving, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Outcome]]:
    root = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor() as threads:
        begun: dict[str, Future[Outcome]] = {
            # Which server to ask is a variable of the context.
            name: threads.submit(copy_context().run, scenario, served, root / name)
            for name, scenario in SCENARIOS.items()
        }
        yield lambda name: begun[name].result()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state in which the uninterrupted run ends."""
    config = recipe(tmp_path_factory.mktemp("reference"))
    train_alone(config)
    return newest(config).state_digest


def assert_ended_well(outcome: Outcome, reference: str) -> None:
    found = newest(outcome.config)
    assert (found.step, found.state_digest) == (NUM_STEPS, reference)
    lock = RunLock(outcome.config.checkpoint_dir)
    lock.acquire()  # nobody has it
    lock.release()


def test_a_deployed_run_survives_the_death_of_its_training_process(
    outcomes: Callable[[str], Outcome], reference: str
) -> None:
    outcome = outcomes("training_killed")
    assert outcome.facts["exit code"] == 0, outcome.output
    assert "Completed" in outcome.output
    assert_ended_well(outcome, reference)
    directory = Path(outcome.config.run.output_dir)
    report = json.loads((directory / "report.json").read_text())
    assert [chunk["attempts"] for chunk in report["chunks"]] == [1, 2, 1, 1]
    assert report["chunks"][1]["signals"] == ["SIGKILL"]
    assert report["checkpoints"][0]["step"] == NUM_STEPS


def test_a_flow_whose_process_was_killed_comes_back_by_itself(
    outcomes: Callable[[str], Outcome], reference: str
) -> None:
    outcome = outcomes("flow_killed")
    assert outcome.run_id
    assert outcome.facts == {"no orphan": True, "back": True}, log_of(outcome.run_id)
    assert flow_run(outcome.run_id).run_count == 2
    assert_ended_well(outcome, reference)
    unfinished = [t.name for t in task_runs(outcome.run_id) if t.state_name == "Running"]
    assert unfinished == [], "task runs of the process that was killed"


def test_so_does_one_whose_worker_was_killed_with_it(
    outcomes: Callable[[str], Outcome], reference: str
) -> None:
    outcome = outcomes("all_killed")
    assert outcome.run_id
    assert outcome.facts == {"no orphan": True, "back": True}, log_of(outcome.run_id)
    assert flow_run(outcome.run_id).run_count == 2
    assert_ended_well(outcome, reference)


def test_cancelling_saves_to_the_very_step(outcomes: Callable[[str], Outcome]) -> None:
    outcome = outcomes("cancelled")
    assert outcome.facts == {"ended": True, "settled": True}, outcome.output
    reached = last_step(Path(outcome.config.run.output_dir) / "metrics.jsonl")
    assert newest(outcome.config).step == reached
    assert (
        train_from_config(outcome.config, resume=True, max_steps=reached + 4).steps == reached + 4
    )


def test_scheduled_deployments_fire_by_themselves(tmp_path: Path) -> None:
    config = exact_recipe(tmp_path / "run", **{"run.max_steps": 8, "checkpoint.every_steps": 4})
    run_id = deploy(config)
    assert until(lambda: state_of(run_id) == "Completed", START_S)
    checked: set[str] = set()

    def reported() -> bool:
        for report in artifacts(f"recovery-{slug(str(tmp_path / 'run'))}"):
            rows = json.loads(str(report.data))
            checked.update(row["check"] for row in rows if row["status"] == "ok")
        return {"load", "replay"} <= checked

    with rescheduled("recovery/verification", tmp_path) as every_15_minutes:
        assert every_15_minutes.interval == timedelta(minutes=15)
        with rescheduled("recovery/drill", tmp_path) as daily:
            assert daily.cron == "0 3 * * *"
            assert until(reported, BACK_S), checked


@contextmanager
def rescheduled(deployment: str, runs: Path) -> Iterator[Any]:
    """Every 20 s, over the runs in a folder; yields the schedule that the deployment came with."""
    with client() as api:
        found = api.read_deployment_by_name(deployment)
        (given,) = found.schedules
        assert given.active
        path = f"/deployments/{found.id}/schedules/{given.id}"
        soon = DeploymentScheduleUpdate(
            schedule=IntervalSchedule(interval=timedelta(seconds=20)),
            parameters={"run_dirs": [str(runs / "*")]},
        )
        api._client.patch(path, json=soon.model_dump(mode="json", exclude_unset=True))
        try:
            yield given.schedule
        finally:
            api._client.patch(path, json={"active": False})


def test_ctrl_c_loses_nothing_and_training_goes_on_the_next_time(
    served: Serving, tmp_path: Path, outcomes: Callable[[str], Outcome]
) -> None:
    for name in SCENARIOS:
        outcomes(name)  # they need the server
    config = recipe(tmp_path, **{"run.max_steps": 1_000_000, "checkpoint.save_on_stop": True})
    run_id = deploy(config)
    training = trainer(config)
    with Processes([training, parent(training), *served.pids()]) as processes:
        assert served.stop() == 0, served.said()
        assert processes.end_within(1), "no orphan"
    reached = last_step(tmp_path / "metrics.jsonl")
    assert newest(config).step == reached
    served.start()
    assert state_of(run_id) in ("AwaitingRetry", "Pending", "Submitting", "Running")
    assert wait_until(lambda: last_step(tmp_path / "metrics.jsonl") > reached + 100, START_S)
    assert flow_run(run_id).run_count == 2
    with client() as api, Processes([trainer(config)]) as processes:  # it would train for an hour
        api.set_flow_run_state(run_id, Cancelling(), force=True)
        assert processes.end_within(START_S)
    assert until(lambda: state_of(run_id) == "Cancelled", START_S)
