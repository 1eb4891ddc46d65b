"""What is brought back of the runs that the server remembers, and what is left alone.

All of them are looked at once, as the server would after a reboot, in a pool that nobody works for.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import State, StateType
from prefect.events import Event, get_events_client
from prefect.exceptions import ObjectAlreadyExists

from speedtronic import SpeedtronicConfig
from speedtronic.flows import revival
from speedtronic.flows.automations import HEARTBEAT
from speedtronic.flows.train import train
from speedtronic.runtime import train_from_config
from tests.flows.serving import Serving, client, flow_run, until
from tests.flows.test_restarts import held, report_of
from tests.recipes import exact_recipe

TRAINED_TO = 8
POOL = "local"


@dataclass(frozen=True)
class Case:
    """What the server remembers, what is on disk, and the state that is due."""

    state: StateType
    due: str
    target: int = 2 * TRAINED_TO
    config: Any = None
    trained: bool = True
    deployed: bool = True
    pool: str = "nobody"
    by_another: bool = False
    heard_of: str = ""  # before the look, or during it
    locked: bool = False


RUNNING, CRASHED, PENDING, CANCELLING = (
    StateType.RUNNING,
    StateType.CRASHED,
    StateType.PENDING,
    StateType.CANCELLING,
)
CASES = {
    "running": Case(RUNNING, "AwaitingRetry"),
    "crashed": Case(CRASHED, "AwaitingRetry"),
    "pending": Case(PENDING, "AwaitingRetry"),
    "cancelling": Case(CANCELLING, "Cancelled"),
    "before the first save": Case(RUNNING, "AwaitingRetry", trained=False),
    "at its target": Case(RUNNING, "Completed", target=TRAINED_TO),
    "crashed at its target": Case(CRASHED, "Completed", target=TRAINED_TO),
    "cancelling at its target": Case(CANCELLING, "Cancelled", target=TRAINED_TO),
    "a configuration that is gone": Case(RUNNING, "AwaitingRetry", config="/not/there.yaml"),
    "sends a heartbeat": Case(RUNNING, "Running", heard_of="during"),
    "sent one just before it was killed": Case(RUNNING, "AwaitingRetry", heard_of="before"),
    "holds its lock": Case(RUNNING, "Running", trained=False, locked=True),
    "crashed but holds its lock": Case(CRASHED, "Crashed", trained=False, locked=True),
    "cancelling but holds its lock": Case(CANCELLING, "Cancelling", trained=False, locked=True),
    "another went on with its store": Case(CRASHED, "Crashed", by_another=True),
    "on its way into a container": Case(PENDING, "Pending", pool="containers"),
    "in a container": Case(RUNNING, "AwaitingRetry", pool="containers"),
    "nobody's": Case(RUNNING, "Running", deployed=False),
    "cancelled": Case(StateType.CANCELLED, "Cancelled"),
    "failed": Case(StateType.FAILED, "Failed"),
    "paused": Case(StateType.PAUSED, "Paused"),
    "waits": Case(StateType.SCHEDULED, "Scheduled"),
}


def deployments() -> dict[str, UUID]:
    """Of the flow, in pools without a worker: pool -> deployment."""
    found = {}
    with client() as api:
        known = api.read_deployment_by_name("speedtronic/train")
        for pool, kind in (("nobody", "process"), ("containers", "docker")):
            with suppress(ObjectAlreadyExists):
                api.create_work_pool(WorkPoolCreate(name=pool, type=kind))
            found[pool] = api.create_deployment(
                flow_id=known.flow_id, name=pool, work_pool_name=pool, path=known.path,
                entrypoint=known.entrypoint,
            )  # fmt: skip
    return found


def prepare(case: Case, config: SpeedtronicConfig, deployments: dict[str, UUID]) -> UUID:
    """Have the server remember a flow run, and the disk what it trained; returns its id."""
    parameters = {"config": case.config or config.to_dict(), "max_steps": case.target}
    with client() as api:
        if case.deployed:
            chosen = deployments[case.pool]
            run_id = api.create_flow_run_from_deployment(chosen, parameters=parameters).id
        else:
            run_id = api.create_flow_run(train, parameters=parameters).id
        if case.state == CANCELLING:  # what was never begun is cancelled at once
            api.set_flow_run_state(run_id, State(type=RUNNING), force=True)
            api.update_flow_run(run_id, infrastructure_pid="1")
        if case.state != StateType.SCHEDULED:
            api.set_flow_run_state(run_id, State(type=case.state), force=True)
    if case.trained:
        train_from_config(config, max_steps=TRAINED_TO)
        report_of(config, uuid4() if case.by_another else run_id)
    return run_id


async def send_heartbeat(run_id: UUID) -> None:
    event = Event(
        occurred=datetime.now(UTC),  # type: ignore[arg-type]
        event=HEARTBEAT,
        resource={"prefect.resource.id": f"prefect.flow-run.{run_id}"},  # type: ignore[arg-type]
    )
    async with get_events_client(checkpoint_every=1) as events:
        await events.emit(event)


@dataclass
class Looked:
    """The flow runs by the names of their cases, and what two looks said, one after the other."""

    ids: dict[str, UUID]
    said: list[str]
    said_again: list[str]


@pytest.fixture(scope="module")
def looked(served: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looked]:
    root, found = tmp_path_factory.mktemp("runs"), deployments()
    configs = {name: exact_recipe(root / name.replace(" ", "-")) for name in CASES}
    with ExitStack() as stack:
        stack.enter_context(undisturbed(served))
        ids = {name: prepare(case, configs[name], found) for name, case in CASES.items()}
        for name, case in CASES.items():
            if case.locked:
                stack.enter_context(held(configs[name]))
            if case.heard_of == "before":
                hear_of(ids[name])
        yield Looked(ids, *(look_while_alive(ids) for _ in range(2)))


def hear_of(run_id: UUID) -> None:
    """It sends a heartbeat, and the server has it."""
    known = num_heartbeats(run_id)
    asyncio.run(send_heartbeat(run_id))
    assert until(lambda: num_heartbeats(run_id) > known, 60)


def look_while_alive(ids: dict[str, UUID]) -> list[str]:
    """A look, between whose two halves the living send their heartbeats."""

    class Between:
        def wait(self, silent_s: float) -> None:
            for name, case in CASES.items():
                if case.heard_of == "during":
                    hear_of(ids[name])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revival, "threading", SimpleNamespace(Event=Between))
        return revival.look()


@contextmanager
def undisturbed(served: Serving) -> Iterator[None]:
    """Automations, schedules and `make serve` would bring back some of it before the test looks."""
    with held_still(served.pid_of("speedtronic.flows.revival")), client() as api:
        api.update_work_pool(POOL, WorkPoolUpdate(is_paused=True))
        found = [each.id for each in api.read_automations()]
        for each in found:
            api.pause_automation(each)
        try:
            yield
        finally:
            for each in found:
                api.resume_automation(each)
            api.update_work_pool(POOL, WorkPoolUpdate(is_paused=False))


@contextmanager
def held_still(pid: int) -> Iterator[None]:
    """The process does nothing in the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def num_heartbeats(run_id: UUID) -> int:
    wanted = {
        "event": {"name": [HEARTBEAT]},
        "any_resource": {"id": [f"prefect.flow-run.{run_id}"]},
    }
    with client() as api:
        answer = api._client.post("/events/filter", json={"filter": wanted})
    return len(answer.json()["events"])


@pytest.mark.parametrize("name", CASES)
def test_each_gets_the_state_that_is_due(name: str, looked: Looked) -> None:
    run = flow_run(looked.ids[name])
    assert run.state_name in (CASES[name].due, "Late" if name == "waits" else "")
    touched = CASES[name].due != CASES[name].state.value.capitalize()
    assert any(repr(run.name) in line for line in looked.said) == touched, looked.said
    assert not any(repr(run.name) in line for line in looked.said_again), "once"
