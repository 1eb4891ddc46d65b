"""A report as a person reads it at three in the morning: the verdict first, what to do last."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speedtronic.recovery.findings import RecoveryReport

STYLES = {"ok": "green", "repaired": "cyan", "warning": "yellow", "failed": "bold red"}


def as_text(report: RecoveryReport) -> str:
    """A headline, a line a finding, and the commands to type."""
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
        # What may be copied is not broken into lines.
        style = "bold" if report.healthy else "bold red"
        console.print(Text(report.headline(), style), soft_wrap=True)
        console.print(table)
        for action in report.actions():
            console.print(Text(f"to do: {action}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"
