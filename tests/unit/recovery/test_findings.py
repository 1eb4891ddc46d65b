"""A report says first whether all is well, and last what to do, each thing once."""

import json

from speedtronic.cli.text import report_as_text
from speedtronic.recovery.findings import Finding, report_of

OK = Finding("directory", "ok", "runs/a", "run r", "the same")
WARNING = Finding("payload", "warning", "runs/a/x|y", "no\nmanifest", "a save", "nothing")
FAILED = Finding("pointer", "failed", "runs/a/latest.json", "[missing]", "step 6", "do this")


def test_only_what_failed_makes_it_unhealthy() -> None:
    repaired = Finding("pointer", "repaired", "latest.json", "missing", "step 6")
    assert report_of("runs/a", 6, [OK, WARNING, repaired]).healthy
    assert not report_of("runs/a", 6, [OK, FAILED]).healthy


def test_as_json() -> None:
    record = json.loads(json.dumps(report_of("runs/a", None, [OK]).to_dict()))
    assert record.keys() == {"run_dir", "healthy", "selected", "findings"}
    [finding] = record["findings"]
    assert finding.keys() == {"check", "status", "path", "found", "expected", "action"}


def test_as_markdown() -> None:
    text = report_of("runs/a", 6, [OK, FAILED, FAILED, WARNING]).to_markdown()
    lines = text.splitlines()
    assert lines[0] == "# runs/a: NOT HEALTHY; a resume would start from step 6"
    assert "| warning | payload | runs/a/x\\|y | no<br>manifest | a save |" in lines
    assert lines[-2:] == ["- do this", "- nothing"]


def test_as_text() -> None:
    lines = report_as_text(report_of("runs/a", None, [OK, FAILED])).splitlines()
    assert lines[0] == "runs/a: NOT HEALTHY; a resume would start from no checkpoint"
    assert lines[1].split() == ["ok", "directory", "run", "r"]
    assert lines[2].split() == ["failed", "pointer", "[missing]"]
    assert lines[-1] == "to do: do this"


def test_what_is_to_be_typed_is_on_one_line() -> None:
    long = f"speedtronic recover {'/a long name' * 20}"
    finding = Finding("pointer", "failed", "x" * 300, "y " * 300, "z", long)
    lines = report_as_text(report_of("runs/" + "a" * 200, 6, [WARNING, finding])).splitlines()
    assert lines[0].endswith("a; NOT HEALTHY; a resume would start from step 6".replace("a;", "a:"))
    assert lines[-2] == f"to do: {long}"
    assert lines[-1] == "to do: nothing"
