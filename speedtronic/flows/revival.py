"""Schedules training runs again whose process is gone, whatever ended it.

    python -m speedtronic.flows.revival

The automations see a flow run die as long as the server is there, and not in its first minutes.
This looks at what the server remembers after the machine, or the server, was gone: `make serve`
does so all the time (`--watch`), and the deployment `revival/revive` every five minutes. A flow run
that shows no sign of life for `SILENT_S` seconds (`automations`) is scheduled again; it goes on
from its store.
"""

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import (
    EventAnyResourceFilter,
    EventFilter,
    EventNameFilter,
    EventOccurredFilter,
)
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings
from prefect.states import AwaitingRetry, Cancelled, Completed

from speedtronic.checkpoint import open_storage
from speedtronic.checkpoint.candidates import candidates
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import SpeedtronicError
from speedtronic.flows.automations import HEARTBEAT, SILENT_S
from speedtronic.flows.restarts import trained_by
from speedtronic.flows.train import configure, train
from speedtronic.storage.lock_owner import lock_owner

UNFINISHED = [StateType.CRASHED, StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]
DAY = timedelta(days=1)  # an older heartbeat is as good as none
PAUSE_S = 20.0  # between two looks of `--watch`
PROCESS = "process"  # work pools of this type start a flow run at once; others may wait for hours


@dataclass(frozen=True)
class Sign:
    """Holds the values of a flow run that change while a process works on it."""

    state: UUID | None
    kind: StateType | None
    heartbeat: UUID | None

    def is_followed_by_silence(self, later: "Sign") -> bool:
        """Return whether nothing happened until `later`, but an automation taking it for dead."""
        taken_for_dead = self.kind != StateType.CRASHED == later.kind
        return self.heartbeat == later.heartbeat and (self.state == later.state or taken_for_dead)


@flow(name="revival")
def revive() -> list[str]:
    """Bring back training runs that nobody works on any more.

    Returns:
        What was done, a line for each flow run.
    """
    done = look()
    for line in done:
        get_run_logger().warning("%s", line)
    return done


def look(silent_s: float = SILENT_S) -> list[str]:
    """Look for `silent_s` at the unfinished training runs; settle those without a sign of life.

    A heartbeat of before the look is none, however recent: everything may have been killed, and
    served again, within seconds. So two looks are compared, and no clock is asked.

    Returns:
        What was done, a line for each flow run.
    """
    with get_client(sync_client=True) as client:
        before = {run.id: _sign(client, run) for run in _unfinished(client)}
        if not before:
            return []
        threading.Event().wait(silent_s)
        done = []
        for run in _unfinished(client):
            first = before.get(run.id)
            if first and first.is_followed_by_silence(_sign(client, run)):
                done += _settle(client, run, is_unwanted=first.kind == StateType.CANCELLING)
        return done


def _unfinished(client: SyncPrefectClient) -> list[FlowRun]:
    """The training runs that somebody should be working on.

    Those without a deployment are a person's own processes: nobody could start them again.
    """
    runs = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[train.name])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=UNFINISHED)),
            deployment_id=FlowRunFilterDeploymentId(is_null_=False),
        ),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
    )
    return [run for run in runs if not _may_still_start(client, run)]


def _may_still_start(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether it is on its way into a container: an image may take long to arrive."""
    if run.state_type != StateType.PENDING or not run.work_pool_name:
        return False
    return client.read_work_pool(run.work_pool_name).type != PROCESS


def _sign(client: SyncPrefectClient, run: FlowRun) -> Sign:
    now = datetime.now(UTC)
    heartbeats = client.read_events(
        EventFilter(
            event=EventNameFilter(name=[HEARTBEAT]),
            any_resource=EventAnyResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
            occurred=EventOccurredFilter.model_validate({"since": now - DAY}),
        ),
        limit=1,  # the newest
    ).events
    return Sign(run.state_id, run.state_type, heartbeats[0].id if heartbeats else None)


def _settle(client: SyncPrefectClient, run: FlowRun, *, is_unwanted: bool) -> list[str]:
    """Give a silent flow run the state that is due to it; returns a line if something was done.

    Args:
        client: of the server.
        run: the flow run.
        is_unwanted: a person wanted its end.
    """
    settings, target = _asked_for(run)
    if settings and lock_owner(open_storage(settings.checkpoint_dir)):
        return []  # alive, but cut off from the server
    state: State[Any]
    if is_unwanted:
        state, done = Cancelled(message="Its process is gone."), "is cancelled"
    elif settings and trained_by(settings.run.output_dir) not in (None, str(run.id)):
        return []  # another flow run has gone on with its store
    elif settings and _reached(settings) >= target:
        said = f"Step {target} was reached; its process died before it could say so."
        state, done = Completed(message=said), "had reached its target"
    else:
        said = "Nobody worked on it any more; it goes on from its newest checkpoint."
        state, done = AwaitingRetry(message=said), "is started again, from its newest checkpoint"
    if client.read_flow_run(run.id).state_id != run.state_id:
        return []  # somebody was faster
    client.set_flow_run_state(run.id, state, force=True)
    return [f"flow run {run.name!r} was {run.state_name} and nobody worked on it: it {done}"]


def _asked_for(run: FlowRun) -> tuple[SpeedtronicConfig | None, int]:
    """Configuration and target; None where it cannot be told here: the flow itself will say why."""
    given = run.parameters
    with suppress(SpeedtronicError, OSError, TypeError, LookupError):
        rest = (given.get(name) for name in ("output_dir", "max_steps", "overrides"))
        return configure(given["config"], *rest)
    return None, 0


def _reached(settings: SpeedtronicConfig) -> int:
    """The step of the newest checkpoint; 0 if there is none, or it cannot be read here."""
    with suppress(SpeedtronicError, OSError):
        for candidate in candidates(open_storage(settings.checkpoint_dir)):
            if candidate.committed:
                return candidate.manifest.step
    return 0


def main() -> int:
    """Look at the server of PREFECT_API_URL, once, or with `--watch` while the parent lives.

    Returns:
        The exit code.
    """
    parent = os.getppid()
    api = get_current_settings().api.url
    if not api:
        print(
            "set PREFECT_API_URL to the server, such as http://127.0.0.1:4200/api", file=sys.stderr
        )
        return 2
    try:
        code = _look_and_tell(api)
        while "--watch" in sys.argv and os.getppid() == parent:
            threading.Event().wait(PAUSE_S)
            _look_and_tell(api)
        return code
    except KeyboardInterrupt:
        return 130


def _look_and_tell(api: str) -> int:
    try:
        for line in look():
            print(line, flush=True)
    except (PrefectException, httpx.HTTPError, OSError) as error:
        print(f"{api}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
