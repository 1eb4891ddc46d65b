"""Check a run, repair it, and prove by drills that a resume would work; independent of Prefect."""

from speedtronic.config import SpeedtronicConfig
from speedtronic.errors import UsageError
from speedtronic.recovery.checklist import CHECKS
from speedtronic.recovery.drills import DRILLS
from speedtronic.recovery.examination import Check, Examination, examine
from speedtronic.recovery.findings import Finding, RecoveryReport, report_of
from speedtronic.recovery.run_globs import expand
from speedtronic.worker.load import LoadProcess

__all__ = [
    "CHECKS",
    "DRILLS",
    "Check",
    "Examination",
    "Finding",
    "LoadProcess",
    "RecoveryReport",
    "examine",
    "expand",
    "report_of",
    "run_checklist",
]


def run_checklist(
    run_dir: str,
    *,
    repair: bool = False,
    drill: str = "none",
    config: SpeedtronicConfig | None = None,
    loader: LoadProcess | None = None,
) -> RecoveryReport:
    """Run every check of a run, and a drill.

    Args:
        run_dir: its output directory.
        repair: correct the pointer, quarantine damaged files, delete the temporaries of dead
            writers; without it nothing is written.
        drill: `none`, `load`, `replay` or `resume`.
        config: instead of the run's own config.yaml.
        loader: the process to load with; by default one that ends with this call.

    Raises:
        UsageError: there is no such directory or drill.
    """
    if drill != "none" and drill not in DRILLS:
        raise UsageError(f"drill {drill!r}: expected none, {', '.join(DRILLS)}")
    examination = examine(run_dir, repair=repair, config=config, loader=loader)
    checks = [check for _, check in CHECKS]
    if drill != "none":
        checks.append(DRILLS[drill])
    findings = [finding for check in checks for finding in check(examination)]
    selected = examination.selected
    return report_of(run_dir, selected.step if selected else None, findings)
