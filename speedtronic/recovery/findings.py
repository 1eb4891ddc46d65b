"""Define findings, and the report made of all findings of one run."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["ok", "repaired", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """The result of one check of one thing.

    Attributes:
        check: name of the check or drill.
        status: `ok`; `repaired`; `warning`, which needs no repair; `failed`, which needs one.
        path: of the file or directory.
        found, expected: in a few words.
        action: what to do; empty when nothing is to be done.
    """

    check: str
    status: Status
    path: str
    found: str
    expected: str
    action: str = ""


@dataclass
class RecoveryReport:
    """All findings about one run.

    Attributes:
        run_dir: the run's output directory.
        healthy: whether nothing failed; warnings leave it true.
        selected: the step that a resume would start from; None if there is no good checkpoint.
        findings: in the order of the checks.
    """

    run_dir: str
    healthy: bool
    selected: int | None
    findings: list[Finding] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Convert to what `json.dumps` accepts."""
        return asdict(self)

    def headline(self) -> str:
        """Summarise the report in one line."""
        health = "healthy" if self.healthy else "NOT HEALTHY"
        start = "from no checkpoint" if self.selected is None else f"from step {self.selected}"
        return f"{self.run_dir}: {health}; a resume would start {start}"

    def actions(self) -> list[str]:
        """List what to do, each action once, those for failures first."""
        urgent = sorted(self.findings, key=lambda finding: finding.status != "failed")
        return list(dict.fromkeys(finding.action for finding in urgent if finding.action))

    def to_markdown(self) -> str:
        """Write the report as Markdown: a headline, a table of the findings, and what to do."""
        rows = [(f.status, f.check, f.path, f.found, f.expected) for f in self.findings]
        lines = [f"# {self.headline()}", "", "| status | check | where | found | expected |"]
        lines.append("|---|---|---|---|---|")
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        if actions := self.actions():
            lines += ["", "To do:", "", *(f"- {action}" for action in actions)]
        return "\n".join(lines) + "\n"


def report_of(run_dir: str, selected: int | None, findings: list[Finding]) -> RecoveryReport:
    """Make the report of a run; it is healthy if no finding failed."""
    healthy = all(finding.status != "failed" for finding in findings)
    return RecoveryReport(run_dir, healthy, selected, findings)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")
