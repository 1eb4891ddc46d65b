"""Runs the recovery checklist and the drills as a flow, with one task for each check.

prefect deployment run recovery/drill
prefect deployment run recovery/verification --param 'run_dirs=["runs/mine"]' --param repair=true
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.states import Completed, Failed, State

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import UsageError
from speedtronic.flows.artifacts import harmless
from speedtronic.flows.events import emit
from speedtronic.flows.keys import slug
from speedtronic.flows.provenance import is_trained_here
from speedtronic.recovery import (
    CHECKS,
    DRILLS,
    Finding,
    LoadProcess,
    RecoveryReport,
    examine,
    expand,
    report_of,
)

TRAINING = ("replay", "resume")  # the drills that run what a run's configuration names


@flow(name="recovery")
def recovery(
    run_dirs: list[str],
    repair: bool = False,
    drill: Literal["none", "load", "replay", "resume"] = "none",
) -> State:
    """Go through the recovery checklist of runs, and prove that a resume would work.

    The flow run fails if a run is not healthy; each has its findings in a table.

    Args:
        run_dirs: the runs' output directories; globs are fine, such as `runs/*`.
        repair: mend what can be mended; without it nothing in a run is written.
        drill: `load` loads what a resume would take, `replay` trains the last interval again and
            compares the states to the bit, `resume` trains a few steps further; in a scratch
            directory. They run what the run's configuration names: only of a directory that
            nobody else can write, and by a schedule only what this server's flow has trained.
    """
    found = _runs(run_dirs)
    if not found:
        return Completed(message=f"no run in {', '.join(run_dirs)} yet")
    with LoadProcess() as loader:
        reports = [
            check_run(run, repair=repair, drill=_allowed(drill, run), loader=loader)
            for run in found
        ]
    for report in reports:
        _show(report, drill)
    sick = [report for report in reports if not report.healthy]
    if sick:
        return Failed(message="; ".join(map(_trouble, sick)))
    return Completed(message=f"healthy: {', '.join(found)}")


def check_run(
    run_dir: str,
    *,
    repair: bool,
    drill: str = "none",
    loader: LoadProcess,
    config: SpeedtronicConfig | None = None,
    target: int | None = None,
) -> RecoveryReport:
    """Run the checklist of one run, each check as a task of the current flow run.

    Args:
        run_dir: its output directory.
        repair: mend what can be mended.
        drill: name of one, or `none`.
        loader: to load with.
        config: instead of the run's own.
        target: step at which the run is complete, instead of the configured one.
    """
    examination = examine(run_dir, repair=repair, config=config, target=target, loader=loader)
    findings: list[Finding] = []
    for name, check in [*CHECKS, *((n, d) for n, d in DRILLS.items() if n == drill)]:
        # A partial: Prefect looks through what a task is given, and an examination is large.
        findings += look.with_options(task_run_name=f"{name}: {run_dir}")(
            partial(check, examination)
        )
    selected = examination.selected
    return report_of(run_dir, selected.step if selected else None, findings)


@task(cache_policy=NO_CACHE, persist_result=False)
def look(check: Callable[[], list[Finding]]) -> list[Finding]:
    """Make one check of one run, and log its findings."""
    findings = check()
    log = get_run_logger()
    for finding in findings:
        say = log.info if finding.status == "ok" else log.warning
        say("%s: %s: %s", finding.status, finding.path, finding.found)
    return findings


def _runs(run_dirs: Sequence[str]) -> list[str]:
    """Return the run directories. None is an error for a person, but not for a schedule."""
    found: list[str] = []
    for given in run_dirs:
        try:
            found += expand([given])
        except UsageError:
            if not _scheduled():
                raise
    if not found and not _scheduled():
        raise UsageError(f"no run in {', '.join(run_dirs) or '[]'}; name runs' output directories")
    return list(dict.fromkeys(found))


def _allowed(drill: str, run_dir: str) -> str:
    """Return the drill to make of a run.

    A drill runs code that the run's configuration names. A person who starts it answers for that;
    a scheduled one trains only in directories that this server's flow has trained.
    """
    if drill not in TRAINING or not _scheduled() or is_trained_here(run_dir):
        return drill
    get_run_logger().warning(
        "%s was not trained by the deployment speedtronic/train of this server: loaded instead of "
        "drilled, since a drill runs what config.yaml names",
        run_dir,
    )
    return "load"


def _scheduled() -> bool:
    context = FlowRunContext.get()
    return bool(context and context.flow_run and context.flow_run.auto_scheduled)


def _show(report: RecoveryReport, drill: str) -> None:
    """Publish the findings as a table, and emit an event if the drill failed."""
    rows = [
        {
            "status": finding.status,
            "check": finding.check,
            "found": finding.found,
            "expected": finding.expected,
            "to do": finding.action or "nothing",
            "where": finding.path,
        }
        for finding in report.findings
    ]
    with harmless("recovery report"):
        key = f"recovery-{slug(report.run_dir)}"
        create_table_artifact(rows, key=key, description=report.headline())
    for finding in report.findings:
        if finding.check == drill and finding.status == "failed":
            emit(
                "speedtronic.drill.failed",
                report.run_dir,
                drill=drill,
                found=finding.found,
                expected=finding.expected,
            )


def _trouble(report: RecoveryReport) -> str:
    """Say in one line what is wrong with a run."""
    failed = [finding for finding in report.findings if finding.status == "failed"]
    said = [f"{f.check}: {_line(f.found)}, expected {_line(f.expected)}" for f in failed]
    actions = dict.fromkeys(_line(finding.action) for finding in failed if finding.action)
    return "; ".join([f"{report.run_dir} is not healthy: {said[0]}", *said[1:], *actions])


def _line(text: str) -> str:
    return " ".join(text.split())
