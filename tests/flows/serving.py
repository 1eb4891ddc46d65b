"""`make serve` as a process of the tests, and what the server knows."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterKey,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import Artifact, FlowRun, TaskRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from speedtronic import SpeedtronicConfig
from speedtronic.flows.stopping import children
from tests.waiting import Processes, wait_until

ROOT = Path(__file__).parents[2]
TO_START_S = 300.0  # a fresh database on a busy machine


class Serving:
    """Server, work pool, deployments, automations and worker, as `make serve` has them.

    Attributes:
        api: the server's address.
        process: of speedtronic/flows/serve.py.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.page = f"http://127.0.0.1:{port}"
        self.api = f"{self.page}/api"
        self.env = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_SERVER_API_PORT": str(port),
        }
        for ours in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
            self.env.pop(ours, None)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns once its worker is there."""
        self._home.mkdir(exist_ok=True)
        log, self.process = self._home / "serve.log", None
        with log.open("wb") as output:
            process = self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "flows/serve.py")],
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def begun() -> bool:
            return "started!" in log.read_text() or process.poll() is not None

        assert wait_until(begun, TO_START_S), log.read_text()
        assert process.poll() is None, log.read_text()

    def stop(self) -> int:
        """Ctrl-C; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(120)

    def kill_everything(self) -> None:
        """SIGKILL for all that was started, down to the workers of a loader: what a reboot does."""
        assert self.process is not None
        doomed = [self.process.pid]
        for pid in doomed:  # grows as it goes
            doomed += children(pid).values()
        with Processes(doomed) as processes:
            for pid in doomed:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(60)
            assert processes.end_within()

    def pids(self) -> list[int]:
        """Server, worker, and the look for runs to bring back."""
        assert self.process is not None
        return list(children(self.process.pid).values())

    def pid_of(self, module: str) -> int:
        """The one of them that runs a module."""
        wanted = module.encode()
        (found,) = [p for p in self.pids() if wanted in Path(f"/proc/{p}/cmdline").read_bytes()]
        return found

    def said(self) -> str:
        """What it printed since it was started."""
        return (self._home / "serve.log").read_text()

    @property
    def client_env(self) -> dict[str, str]:
        """For a process that talks to the server."""
        return {**self.env, "PREFECT_API_URL": self.api, "PREFECT_API_AUTH_STRING": self.secret}

    @property
    def secret(self) -> str:
        """What the server asks its clients for."""
        return (self._home / "api-auth-string").read_text().strip()

    @contextmanager
    def as_client(self) -> Iterator[None]:
        """This process talks to the server in the block."""
        with temporary_settings({PREFECT_API_URL: self.api, PREFECT_API_AUTH_STRING: self.secret}):
            yield

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A `prefect` command, run to its end."""
        return subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            env={**self.client_env, "COLUMNS": "400"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )


ALONE = """
import json, sys
from speedtronic.runtime import train_from_config
train_from_config(json.loads(sys.argv[1]), max_steps=json.loads(sys.argv[2]))
"""


def train_alone(config: SpeedtronicConfig, max_steps: int | None = None) -> None:
    """Train uninterrupted, in a process of its own: here Prefect's threads draw from Python's
    random numbers, whose state is part of a run's."""
    arguments = [json.dumps(config.to_dict()), json.dumps(max_steps)]
    subprocess.run([sys.executable, "-c", ALONE, *arguments], check=True, cwd=ROOT)


def client() -> SyncPrefectClient:
    return get_client(sync_client=True)


def deploy(config: SpeedtronicConfig, deployment: str = "speedtronic/train") -> UUID:
    """Have a worker train; returns the flow run's id."""
    with client() as api:
        found = api.read_deployment_by_name(deployment)
        # A standby is of use only to who is killed, and few of these are.
        given = config.override({"chunk.standby": False}).to_dict()
        return api.create_flow_run_from_deployment(found.id, parameters={"config": given}).id


def flow_run(run_id: UUID) -> FlowRun:
    with client() as api:
        return api.read_flow_run(run_id)


def state_of(run_id: UUID) -> str:
    found = flow_run(run_id)
    return f"{found.state_name}"


def task_runs(run_id: UUID) -> list[TaskRun]:
    with client() as api:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[run_id]))
        return list(api.read_task_runs(flow_run_filter=chosen))


def log_of(run_id: UUID) -> str:
    with client() as api:
        logs = api.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id])))
    return "\n".join(log.message for log in logs)


def artifacts(key: str) -> list[Artifact]:
    """Those under a key, newest first."""
    with client() as api:
        found = api.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        )
    return sorted(found, key=lambda artifact: str(artifact.created), reverse=True)


def events(name: str, since: Any = None) -> list[dict[str, Any]]:
    """Payloads of the events of one kind, newest first."""
    with client() as api:
        answer = api._client.post(
            "/events/filter", json={"filter": {"event": {"name": [name]}}, "limit": 50}
        )
    return [{"resource": e["resource"], **e["payload"]} for e in answer.json()["events"]]


def until(predicate: Callable[[], bool], timeout_s: float) -> bool:
    """As `wait_until`, for what has to be asked of the server: looks twice a second."""
    never, deadline = threading.Event(), time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if predicate():
            return True
        never.wait(0.5)
    return predicate()
