"""The machine, or only the server, goes away: flow runs come back by themselves, to the same bits.

`make test-long`: each of these waits for what takes more than a minute by itself.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from speedtronic import SpeedtronicConfig
from speedtronic.flows.stopping import children
from speedtronic.storage.lock import read_lock_record
from tests.flows.serving import (
    ROOT,
    Serving,
    deploy,
    flow_run,
    log_of,
    state_of,
    train_alone,
    until,
)
from tests.recipes import exact_recipe, newest
from tests.waiting import Processes, last_step, wait_until

NUM_STEPS = 400
START_S = 240.0
BACK_S = 180.0  # what is promised, from when it is served again
END_S = 400.0
SEED = int(os.environ.get("REBOOT_SEED", "0"))


def recipe(directory: Path, **changes: Any) -> SpeedtronicConfig:
    settings = {
        "run.max_steps": NUM_STEPS,
        "checkpoint.every_steps": 20,
        "chunk.steps": 100,
        "chunk.retry_delay_s": 0.0,
        "data.num_workers": 2,
    }
    return exact_recipe(directory, **{**settings, **changes})


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One PREFECT_HOME for all; whoever uses it leaves it served."""
    serving = Serving(tmp_path_factory.mktemp("prefect"))
    try:
        serving.start()
        with serving.as_client():
            yield serving
    finally:
        serving.kill_everything()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state in which the uninterrupted run ends."""
    config = recipe(tmp_path_factory.mktemp("reference"))
    train_alone(config)
    return newest(config).state_digest


def reached(config: SpeedtronicConfig, step: int) -> bool:
    return last_step(Path(config.run.output_dir) / "metrics.jsonl") >= step


def saving(config: SpeedtronicConfig) -> bool:
    """Whether a save is half done: a payload has no manifest yet, or a file its temporary name."""
    directory = Path(config.checkpoint_dir)
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    payloads = {name for name in names if name.endswith(".pt")}
    whole = {name for name in payloads if name.removesuffix(".pt") + ".json" in names}
    known = {"latest.json", "quarantine", *payloads}
    return bool(payloads - whole) or any(
        name not in known and not name.startswith((".lock", "step_")) for name in names
    )


MOMENTS: dict[str, Callable[[SpeedtronicConfig, UUID], bool]] = {
    "starting": lambda config, run_id: state_of(run_id) in ("Pending", "Submitting", "Running"),
    "in the first chunk": lambda config, run_id: reached(config, 30),
    "between chunks": lambda config, run_id: reached(config, 100),
    "during a save": lambda config, run_id: reached(config, 120) and saving(config),
    "near the end": lambda config, run_id: reached(config, NUM_STEPS),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_everything_killed_at_once_and_served_again(
    moment: str, serving: Serving, reference: str, tmp_path: Path
) -> None:
    config = recipe(tmp_path / "run")
    run_id = deploy(config)
    rng = random.Random(f"{SEED} {moment}")
    assert wait_until(lambda: MOMENTS[moment](config, run_id), START_S), log_of(run_id)
    if moment != "during a save":
        wait_until(lambda: False, rng.uniform(0, 0.3))  # random within it
    serving.kill_everything()
    serving.start()
    assert_back(run_id)
    assert_ended_well(config, run_id, reference)
    assert flow_run(run_id).run_count <= 2, "once"


def assert_back(run_id: UUID) -> None:
    """It leaves the state in which the server found it, for one in which it is worked on."""
    found = flow_run(run_id).state_id

    def back() -> bool:
        now = flow_run(run_id)
        return now.state_id != found and now.state_name in ("Running", "Completed")

    assert until(back, BACK_S), (state_of(run_id), log_of(run_id))


def assert_ended_well(config: SpeedtronicConfig, run_id: UUID, reference: str) -> None:
    assert until(lambda: state_of(run_id) == "Completed", END_S), (state_of(run_id), log_of(run_id))
    found = newest(config)
    assert (found.step, found.state_digest) == (NUM_STEPS, reference)


def flow_process(config: SpeedtronicConfig) -> tuple[int, int]:
    """The process that trains, and the flow's above it."""
    pid = read_lock_record(config.checkpoint_dir)["pid"]
    assert isinstance(pid, int)
    answer = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True)
    return pid, int(answer.stdout)


def test_a_crash_just_after_a_restart_of_the_server(
    serving: Serving, reference: str, tmp_path: Path
) -> None:
    config = recipe(tmp_path / "run")
    run_id = deploy(config)
    assert wait_until(lambda: reached(config, 50), START_S), log_of(run_id)
    serving.kill_everything()
    serving.start()
    assert wait_until(lambda: reached(config, 150), START_S), log_of(run_id)
    for pid in reversed(flow_process(config)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert_ended_well(config, run_id, reference)
    assert flow_run(run_id).run_count == 3


def test_the_database_of_the_server_is_lost(reference: str, tmp_path: Path) -> None:
    config = recipe(tmp_path / "run")
    serving = Serving(tmp_path / "prefect")
    try:
        serving.start()
        with serving.as_client():
            deploy(config)
            assert wait_until(lambda: reached(config, 150), START_S)
        serving.kill_everything()
        shutil.rmtree(tmp_path / "prefect")
        serving.start()
        with serving.as_client():
            assert_ended_well(config, deploy(config), reference)
    finally:
        serving.kill_everything()
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["start_step"] >= 100, "it went on from the store"


def kill_server(serving: Serving) -> list[int]:
    """SIGKILL for the server and `make serve` itself; returns what lives on: worker and flow."""
    assert serving.process is not None
    started = {int(pid) for pid in children(serving.process.pid)}
    server = {
        pid
        for pid in started
        if b"speedtronic.flows.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    }
    assert len(server) == 1
    for pid in (serving.process.pid, *server):
        os.kill(pid, signal.SIGKILL)
    serving.process.wait(60)
    return list(started - server)


def end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_without_the_server_the_flow_ends_in_time_and_the_server_learns_of_it(
    serving: Serving, reference: str, tmp_path: Path
) -> None:
    config = recipe(tmp_path / "run")
    run_id = deploy(config)
    assert wait_until(lambda: reached(config, 130), START_S), log_of(run_id)
    with Processes(flow_process(config)) as processes:
        left = kill_server(serving)
        try:
            assert wait_until(lambda: reached(config, NUM_STEPS), START_S)
            assert processes.end_within(30)
            found = newest(config)
            assert (found.step, found.state_digest) == (NUM_STEPS, reference)
            report = json.loads((tmp_path / "run/report.json").read_text())
            assert report["trained_to"] == NUM_STEPS
        finally:
            serving.start()
            end(left)
    assert_ended_well(config, run_id, reference)
    assert flow_run(run_id).run_count == 1, "nothing was left to train"


def test_a_flow_that_outlives_an_absence_of_the_server_is_not_started_twice(
    serving: Serving, tmp_path: Path
) -> None:
    changes = {"run.max_steps": 1_000_000, "checkpoint.every_steps": 200, "chunk.steps": 400}
    config = recipe(tmp_path / "run", **changes)
    run_id = deploy(config)
    assert wait_until(lambda: reached(config, 450), START_S), log_of(run_id)
    process = flow_process(config)
    left = kill_server(serving)
    try:
        assert wait_until(lambda: reached(config, 850), START_S), "to the end of the chunk and on"
        serving.start()
        looked = [sys.executable, "-m", "speedtronic.flows.revival"]
        done = subprocess.run(
            looked, env=serving.client_env, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
        assert flow_process(config) == process
        assert (state_of(run_id), flow_run(run_id).run_count) == ("Running", 1)
    finally:
        end([*reversed(process), *left])
