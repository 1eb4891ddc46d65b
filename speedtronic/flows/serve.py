"""Runs Prefect's server, a work pool, the deployments and a worker here, until Ctrl-C.

    make serve

PREFECT_SERVER_API_HOST and PREFECT_SERVER_API_PORT say where; its data are in PREFECT_HOME, with
the secret that the page and the commands need.
On Ctrl-C training stops at the end of an update, and goes on with the next `make serve`.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
os.chdir(ROOT)  # where prefect.yaml is, and Prefect's settings in pyproject.toml

import httpx  # noqa: E402
from prefect.client.orchestration import get_client  # noqa: E402
from prefect.client.schemas.actions import WorkPoolCreate  # noqa: E402
from prefect.exceptions import ObjectAlreadyExists  # noqa: E402
from prefect.settings import (  # noqa: E402
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    get_current_settings,
    temporary_settings,
)

from speedtronic.errors import OutputDirError  # noqa: E402
from speedtronic.flows.api_access import Access  # noqa: E402
from speedtronic.flows.automations import make_automations  # noqa: E402
from speedtronic.flows.stopping import handing_out, stopping_flow_runs  # noqa: E402

POOL = "local"
START_S = 180.0  # a fresh database takes a slow machine half a minute
WORKER_GRACE_S = 20.0
SERVER_GRACE_S = 15.0
WATCH = ["speedtronic.flows.revival", "--watch"]
LOOK_GRACE_S = 5.0
POLL_S = 0.2

TO_TRY = """
  {page}   runs, chunks, artifacts; the server's log is {log}
  the page asks once for the secret, which this prints: echo "{secret}"

In another terminal, in {root}:

  . .venv/bin/activate; {client}
  prefect deployment run speedtronic/train --watch
  prefect deployment run speedtronic/train --param max_steps=300 --watch
  prefect deployment run recovery/drill --watch

Ctrl-C stops everything here; a run that is training goes on with the next `make serve`.
"""


class Stop:
    """Notes SIGINT and SIGTERM, and lets the main loop wait for them.

    A handler of our own also lets the processes started here have the default one, even when this
    one was started with SIGINT ignored, as a shell does in the background.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a signal; return whether one came."""
        return self._event.wait(seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


def main() -> int:
    stop = Stop()
    try:
        access = Access.from_settings()
    except OutputDirError as error:
        return _failed(str(error))
    api = f"{access.page}/api"
    if _answers(api):
        return _failed(f"there is a server at {access.page} already; docs/deployments.md uses it")
    # For the processes started here.
    os.environ |= {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": access.secret}
    print("starting the server; the first time takes half a minute", flush=True)
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    log = home / "server.log"
    ended = f"the server or the worker has ended; the server's log is {log}"
    with (
        temporary_settings({PREFECT_API_URL: api, PREFECT_API_AUTH_STRING: access.secret}),
        log.open("wb") as output,
        _running("the server", ["speedtronic.flows.server"], SERVER_GRACE_S, output) as serving,
    ):
        if not _wait_for(api, serving, stop):
            return 0 if stop.wait(0) else _failed(ended)
        with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        _prefect("--no-prompt", "deploy", "--all")
        make_automations()
        command = ["prefect", "worker", "start", "--pool", POOL]
        with (
            handing_out(POOL),
            _running("the worker", command, WORKER_GRACE_S) as working,
            _running("the look for runs to bring back", WATCH, LOOK_GRACE_S) as looking,
            stopping_flow_runs(POOL, working.pid),
        ):
            to_try = TO_TRY.format(
                page=access.page,
                log=log,
                secret=access.secret_in,
                root=ROOT,
                client=access.client_command(),
            )
            print(to_try, access.warning(), sep="\n", flush=True)
            while not stop.wait(POLL_S):
                looking.poll()  # if it has ended, nobody else would reap it
                if serving.poll() is not None or working.poll() is not None:
                    return _failed(ended)
            print("stopping; what is being trained stops after its update", flush=True)
    return 0


@contextmanager
def _running(
    name: str, arguments: list[str], grace_s: float, output: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module in a child process; end it by SIGINT, or by SIGKILL after `grace_s`.

    In a session of its own, so that Ctrl-C reaches only this process, which stops them in order.
    """
    command = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                print(f"{name} did not stop within {grace_s:.0f} s; killed", file=sys.stderr)
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _failed(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


def _prefect(*arguments: str) -> None:
    """Run a `prefect` command to its end; print its output only if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments], capture_output=True, text=True
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"prefect {' '.join(arguments)} failed")


def _wait_for(api: str, serving: subprocess.Popen[bytes], stop: Stop) -> bool:
    """Wait up to `START_S` for the server; return whether it answers."""
    for _ in range(round(START_S / POLL_S)):
        if _answers(api):
            return True
        if serving.poll() is not None or stop.wait(POLL_S):
            return False
    print(f"no answer from {api} within {START_S:.0f} s", file=sys.stderr)
    return False


def _answers(api: str) -> bool:
    try:
        return httpx.get(f"{api}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False
