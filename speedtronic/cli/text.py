"""Format what `speedtronic inspect`, `verify` and `recover` print for a person."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speedtronic.checkpoint.survey import Survey
from speedtronic.recovery.findings import RecoveryReport

STYLES = {"ok": "green", "repaired": "cyan", "warning": "yellow", "failed": "bold red"}


def report_as_text(report: RecoveryReport) -> str:
    """Format a report: a headline, a line for each finding, and the commands to type."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("status", "check", "found"):
        table.add_column(column, no_wrap=column != "found", overflow="fold")
    for finding in report.findings:
        said = finding.found
        if finding.status != "ok":
            said += f"\nexpected: {finding.expected}\n{finding.path}"
        table.add_row(Text(finding.status, STYLES[finding.status]), finding.check, Text(said))
    console = Console()
    console.width = max(console.width, 100)
    with console.capture() as captured:
        # Commands and paths are not broken into lines, so that they can be copied.
        style = "bold" if report.healthy else "bold red"
        console.print(Text(report.headline(), style), soft_wrap=True)
        console.print(table)
        for action in report.actions():
            console.print(Text(f"to do: {action}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def survey_as_text(found: Survey) -> str:
    """Format a survey: a table of the checkpoints, and where a resume would start."""
    table = Table(box=None, pad_edge=False)
    for column in ("step", "status", "size", "samples", "state digest", "reason"):
        justify: Any = "right" if column in ("step", "size") else "left"
        table.add_column(column, justify=justify, no_wrap=column != "reason")
    for c in found.checkpoints:
        size = "" if c.size_bytes is None else f"{c.size_bytes / 2**20:.1f} MiB"
        samples = "" if c.samples is None else str(c.samples)
        table.add_row(str(c.step), c.status, size, samples, c.state_digest or "", c.reason)
    console = Console()
    # A terminal folds long lines by itself; a truncated digest would be useless.
    console.width = max(console.width, 110)
    with console.capture() as captured:
        if found.checkpoints:
            console.print(table)
        else:
            console.print("no checkpoints")
    pointer = found.pointer_problem or (
        f"step {found.pointer.step}" if found.pointer else "missing"
    )
    chosen = "nothing" if found.selected is None else f"step {found.selected}"
    rejected = [f"in quarantine: {q.file}: {q.reason}" for q in found.quarantine]
    summary = [f"latest.json: {pointer}", *rejected, f"a resume would start from: {chosen}"]
    return captured.get() + "\n" + "\n".join(summary)
