"""Every test that the failure model names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "failure-model.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", TEXT)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda name: name)
def test_what_it_names_is_there(file: str, test: str) -> None:
    [path] = (ROOT / "tests").rglob(file)
    functions = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    assert test in {function.name for function in functions}


def test_every_promise_names_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith(("| fault", "|---"))]
    assert len(promises) > 20
    assert [row for row in promises if not re.search(r"::test_\w+` ?\|$", row)] == []
