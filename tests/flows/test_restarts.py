"""A flow run that is started again: how often, and what it waits for."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow

from speedtronic import SpeedtronicConfig
from speedtronic.flows import restarts
from speedtronic.flows.restarts import MAX_RUNS, TooManyRestarts, take_over
from tests.flows.serving import ROOT
from tests.recipes import exact_recipe

HOLDER = """
import sys, threading
from speedtronic.checkpoint import RunLock
lock = RunLock(sys.argv[1])  # kept: it is released with the object
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(config: SpeedtronicConfig) -> Iterator["subprocess.Popen[str]"]:
    """Another process has the run's lock."""
    Path(config.checkpoint_dir).mkdir(parents=True)
    command = [sys.executable, "-c", HOLDER, config.checkpoint_dir]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def started(monkeypatch: pytest.MonkeyPatch, run_count: int, run_id: Any = None) -> Any:
    """The flow, as if it were started for the `run_count`th time."""
    record = SimpleNamespace(id=run_id or uuid4(), run_count=run_count)
    monkeypatch.setattr(restarts, "this_flow_run", lambda: record)
    return flow(name="again")(take_over)


def report_of(config: SpeedtronicConfig, run_id: Any) -> None:
    (Path(config.run.output_dir) / "report.json").write_text(json.dumps({"flow_run": str(run_id)}))


def test_it_gives_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = exact_recipe(tmp_path)
    started(monkeypatch, MAX_RUNS)(config)
    with pytest.raises(TooManyRestarts, match=f"started {MAX_RUNS} times"):
        started(monkeypatch, MAX_RUNS + 1)(config)


def test_it_waits_for_its_own_former_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run_id = exact_recipe(tmp_path / "run"), uuid4()
    monkeypatch.setattr(restarts, "POLL_S", 0.05)
    waiting, ended = threading.Event(), threading.Event()
    look = restarts.lock_owner

    def looked(storage: Any) -> str:
        waiting.set()
        return look(storage)

    monkeypatch.setattr(restarts, "lock_owner", looked)
    with held(config) as process:
        report_of(config, run_id)
        again = started(monkeypatch, 2, run_id)

        def end_it() -> None:
            waiting.wait(60)
            ended.set()
            process.kill()

        thread = threading.Thread(target=end_it)
        thread.start()
        again(config)
        waited = ended.is_set()
        waiting.set()
        thread.join()
    assert waited


@pytest.mark.parametrize("run_count", [1, 2])
def test_it_does_not_wait_for_another_run(
    run_count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = exact_recipe(tmp_path / "run")
    with held(config):
        report_of(config, uuid4())
        started(monkeypatch, run_count)(config)  # the restore refuses, naming who has it
