"""Defines three automations, by which the server restarts a flow run whose process died.

    python -m speedtronic.flows.automations

makes them on the server of PREFECT_API_URL, or brings them up to date; `make serve` does it too.
The first takes a run that has been silent for crashed. The second schedules a crashed one again:
the same flow run, which goes on from its store. The third ends one that only crashes; the flow
itself gives up after `speedtronic.flows.restarts.MAX_RUNS` starts.
"""

import sys
from datetime import timedelta

import httpx
from prefect.automations import (
    AutomationCore,
    ChangeFlowRunState,
    EventTrigger,
    Posture,
    ResourceSpecification,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings

HEARTBEAT_S = 30  # also in pyproject.toml, for the processes that send them; the least allowed
SILENT_S = 70  # two heartbeats and some
SETTLED_S = 30  # from a crash to the next start
MAX_CRASHES_AN_HOUR = 10

HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Crashed", "Cancelled", "Paused", "Suspended", "AwaitingRetry")
_AFTER_A_CRASH = ("Scheduled", "AwaitingRetry", "Pending", "Running", "Failed", "Completed")
_FLOWS = ("speedtronic", "recovery", "revival")


def automations() -> list[AutomationCore]:
    """Return all three automations, as they should be on the server."""
    training: list[ResourceSpecification | dict[str, str | list[str]]] = [
        {"prefect.resource.role": "flow", "prefect.resource.name": "speedtronic"},
        {"prefect.resource.role": "deployment"},  # without one, nobody would start it again
    ]
    return [
        AutomationCore(
            name="speedtronic: a silent flow run has crashed",
            description=f"No heartbeat for {SILENT_S} s: its process is gone.",
            trigger=EventTrigger(
                posture=Posture.Proactive,
                match={"prefect.resource.id": "prefect.flow-run.*"},
                match_related={
                    "prefect.resource.role": "flow",
                    "prefect.resource.name": list(_FLOWS),
                },
                for_each={"prefect.resource.id"},
                after={HEARTBEAT},
                expect={HEARTBEAT, *(f"prefect.flow-run.{end}" for end in _ENDS)},
                threshold=1,
                within=timedelta(seconds=SILENT_S),
            ),
            actions=[
                ChangeFlowRunState(
                    name="Crashed",
                    state=StateType.CRASHED,
                    message=f"No heartbeat for {SILENT_S} s: its process is gone.",
                    force=False,
                )
            ],
        ),
        AutomationCore(
            name="speedtronic: a crashed training run goes on",
            description="The same flow run is scheduled again; it goes on from its store.",
            # Not at once: a process worker reports a crash twice, some seconds apart, and the
            # second report would crash the flow run that the first one brought back.
            trigger=EventTrigger(
                posture=Posture.Proactive,
                match={"prefect.resource.id": "prefect.flow-run.*"},
                match_related=training,
                for_each={"prefect.resource.id"},
                after={"prefect.flow-run.Crashed"},
                expect={f"prefect.flow-run.{state}" for state in _AFTER_A_CRASH},
                threshold=1,
                within=timedelta(seconds=SETTLED_S),
            ),
            actions=[
                ChangeFlowRunState(
                    name="AwaitingRetry",
                    state=StateType.SCHEDULED,
                    message="Its process died; it goes on from its newest checkpoint.",
                    force=True,
                )
            ],
        ),
        AutomationCore(
            name="speedtronic: a training run that only crashes has failed",
            description=f"{MAX_CRASHES_AN_HOUR} crashes within an hour: it would go on for ever.",
            # Also where the flow cannot be loaded, and so cannot count its own starts.
            trigger=EventTrigger(
                posture=Posture.Reactive,
                match={"prefect.resource.id": "prefect.flow-run.*"},
                match_related=training,
                for_each={"prefect.resource.id"},
                expect={"prefect.flow-run.Crashed"},
                threshold=MAX_CRASHES_AN_HOUR,
                within=timedelta(hours=1),
            ),
            actions=[
                ChangeFlowRunState(
                    name="Failed",
                    state=StateType.FAILED,
                    message=f"It crashed {MAX_CRASHES_AN_HOUR} times within an hour.",
                    force=True,
                )
            ],
        ),
    ]


def make_automations() -> None:
    """Make them on the server, or bring them up to date; calling it again changes nothing more."""
    with get_client(sync_client=True) as client:
        for wanted in automations():
            there = client.read_automations_by_name(wanted.name)
            if not there:
                client.create_automation(wanted)
            elif not _same(there[0], wanted):  # an update forgets which runs are being watched
                # It sends only the fields that were set; defaults count too.
                complete = AutomationCore.model_validate(
                    wanted.model_dump(exclude={"owner_resource"})
                )
                client.update_automation(there[0].id, complete)


def _same(there: AutomationCore, wanted: AutomationCore) -> bool:
    fields = {"description", "trigger", "actions"}  # one that was switched off stays so
    return there.model_dump(include=fields) == wanted.model_dump(include=fields)


def main() -> int:
    api = get_current_settings().api.url
    if not api:
        print(
            "set PREFECT_API_URL to the server, such as http://127.0.0.1:4200/api", file=sys.stderr
        )
        return 2
    try:
        make_automations()
    except (PrefectException, httpx.HTTPError, OSError) as error:
        print(f"{api}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for automation in automations():
        print(f"{api}: {automation.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
