"""A shorter `make powerloss`: one file system, few states, and the stores that must be caught."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.powerloss.campaign import obstacle


@pytest.mark.skipif(obstacle() != "", reason=obstacle())
def test_no_power_loss_of_a_real_disk_breaks_a_promise() -> None:
    command = [sys.executable, "-m", "tests.powerloss", "--only", "ext4 ordered", "--states", "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(line["fired"], line["violated"]) for line in lines] == [(30, 0), (30, 0)]
    assert done.stdout.count("caught, as it must be") == 2
    assert "powerloss" not in Path("/proc/mounts").read_text(encoding="utf-8")
