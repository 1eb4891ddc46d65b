"""Ends a worker's flow runs so that they go on when there is a worker again.

A worker that is told to end kills its flow runs, which then save nothing and stay Running for ever.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import AwaitingRetry

GRACE_S = 30.0  # as Prefect's own when a flow run is cancelled
POLL_S = 0.2


@contextmanager
def handing_out(pool: str) -> Iterator[None]:
    """The pool hands out work when the block begins, and again when it has ended."""
    _pause(pool, False)
    try:
        yield
    finally:
        with suppress(httpx.HTTPError):
            _pause(pool, False)


@contextmanager
def stopping_flow_runs(pool: str, worker_pid: int) -> Iterator[None]:
    """After the block the pool is paused, and the worker's flow runs are ended.

    Each gets SIGTERM, saves as its configuration says, and is scheduled again, for the next worker.
    """
    try:
        yield
    finally:
        pids = children(worker_pid)
        stopped: list[FlowRun] = []
        with suppress(httpx.HTTPError):  # the server may be what has ended
            _pause(pool, True)
            stopped = [run for run in _running(pool) if run.infrastructure_pid in pids]
        _end(list(pids.values()))
        with suppress(httpx.HTTPError), get_client(sync_client=True) as client:
            for flow_run in stopped:
                state = client.read_flow_run(flow_run.id).state
                if state is not None and state.type == StateType.CRASHED:
                    client.set_flow_run_state(flow_run.id, AwaitingRetry(), force=True)


def children(pid: int) -> dict[str, int]:
    """Return the processes that `pid` started, by process id as Prefect writes it."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {child: int(child) for child, parent in pairs if parent == str(pid)}


def _pause(pool: str, paused: bool) -> None:
    with get_client(sync_client=True) as client:
        client.update_work_pool(pool, WorkPoolUpdate(is_paused=paused))


def _running(pool: str) -> list[FlowRun]:
    running = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(
            work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=running)),
        )


def _end(leaders: list[int]) -> None:
    """SIGTERM to each one's process group, as Prefect does to cancel; wait for the last to end."""
    never = threading.Event()
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGTERM)
    for _ in range(round(GRACE_S / POLL_S)):
        if not any(_alive(leader) for leader in leaders):
            return
        never.wait(POLL_S)


def _alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
