"""Cleans up after an earlier process of a flow run, before the first chunk.

A flow run may be started again after its process died, or was taken for dead; and whatever trained
the run before may have left it damaged.
"""

import threading

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.context import FlowRunContext
from prefect.states import Crashed

from speedtronic.checkpoint import layout, open_storage
from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import CorruptError, SpeedtronicError
from speedtronic.flows.artifacts import harmless
from speedtronic.recovery import run_checklist
from speedtronic.report import REPORT_JSON
from speedtronic.storage.lock_owner import lock_owner
from speedtronic.storage.regular_files import read_json
from speedtronic.storage.urls import local_path

MAX_RUNS = 50
POLL_S = 1.0


class TooManyRestarts(SpeedtronicError):
    """Raised when the process of a flow run has died too often to start it again."""


def this_flow_run() -> FlowRun | None:
    """Return the current flow run; None outside of one."""
    context = FlowRunContext.get()
    return context.flow_run if context else None


def take_over(settings: SpeedtronicConfig) -> None:
    """End the task runs of an earlier process of this flow run, and wait for that process to end.

    Raises:
        TooManyRestarts: it was started `MAX_RUNS` times before.
    """
    flow_run = this_flow_run()
    if flow_run is None or flow_run.run_count <= 1:
        return
    if flow_run.run_count > MAX_RUNS:
        raise TooManyRestarts(
            f"this flow run was started {flow_run.run_count - 1} times and never came to an end; "
            "see its log for the cause, then start a new one: it goes on from the same store"
        )
    get_run_logger().warning(
        "start %d of this flow run: its process died before; going on from the store",
        flow_run.run_count,
    )
    with harmless("end of the task runs that died"):
        _end_task_runs(flow_run)
    if trained_by(settings.run.output_dir) == str(flow_run.id):
        _wait_for_former_process(settings)


def has_history(settings: SpeedtronicConfig) -> bool:
    """Return whether the run has checkpoints already."""
    if not local_path(settings.run.output_dir).is_dir():
        return False
    return any(
        True for _ in layout.steps_newest_first(open_storage(settings.checkpoint_dir).list())
    )


def trained_by(run_dir: str) -> str | None:
    """Return the id of the flow run that last began to train in `run_dir`; None if not known."""
    path = local_path(run_dir) / REPORT_JSON
    try:
        flow_run = read_json(path)["flow_run"]
    except (OSError, CorruptError, LookupError):
        return None
    return flow_run if isinstance(flow_run, str) else None


@task(cache_policy=NO_CACHE, persist_result=False, task_run_name="checklist")
def recover_run(settings: SpeedtronicConfig) -> None:
    """Run the recovery checklist, and repair what it can.

    What it cannot repair is only logged here: the restore decides what may be trained on, and
    raises its own error.
    """
    log = get_run_logger()
    report = run_checklist(settings.run.output_dir, repair=True)
    for finding in report.findings:
        if finding.status != "ok":
            say = log.error if finding.status == "failed" else log.warning
            say("%s: %s: %s; expected %s", finding.check, finding.path, finding.found,
                finding.expected)  # fmt: skip
    log.info("%s", report.headline())


def _end_task_runs(flow_run: FlowRun) -> None:
    """Set task runs whose process is gone to Crashed; they would be shown as running for ever."""
    with get_client(sync_client=True) as client:
        running = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id])),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(type=TaskRunFilterStateType(any_=[StateType.RUNNING]))
            ),
        )
        for task_run in running:
            client.set_task_run_state(
                task_run.id, Crashed(message="the flow's process died"), force=True
            )


def _wait_for_former_process(settings: SpeedtronicConfig) -> None:
    """Wait until the earlier process releases the run's lock.

    That takes a moment if the process is about to end, and as long as it trains if it was wrongly
    taken for dead, for instance while the server was away.
    """
    storage = open_storage(settings.checkpoint_dir)
    never, told = threading.Event(), False
    while by := lock_owner(storage):
        if not told:
            told = True
            get_run_logger().warning("an earlier process of this flow run, %s, still trains", by)
        never.wait(POLL_S)
