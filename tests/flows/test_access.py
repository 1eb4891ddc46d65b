"""What `make serve` lets in: a page of another site can neither look nor start anything."""

import asyncio
import base64
import re
import subprocess
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect.states import Paused
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.flows.serving import ROOT, Serving, client

START = "/deployments/{id}/create_flow_run"
LIST = "/deployments/filter"


@pytest.fixture(scope="module")
def deployment() -> str:
    with client() as api:
        return str(api.read_deployment_by_name("speedtronic/train").id)


def signed(served: Serving) -> dict[str, str]:
    """The header of who knows the secret."""
    return {"Authorization": f"Basic {base64.b64encode(served.secret.encode()).decode()}"}


def num_flow_runs(deployment: str) -> int:
    """Of a deployment without a schedule: the server makes those of the others meanwhile."""
    with client() as api:
        chosen = {"deployments": {"id": {"any_": [deployment]}}}
        answer = api._client.post("/flow_runs/count", json=chosen)
        return int(answer.json())


# What a page can make a browser send without being asked first, and what it cannot.
FORGED: dict[str, dict[str, str]] = {
    "another page": {"Origin": "http://evil.example", "Content-Type": "application/json"},
    "as text": {"Origin": "http://evil.example", "Content-Type": "text/plain"},
    "as a form": {
        "Origin": "http://evil.example",
        "Content-Type": "application/x-www-form-urlencoded",
    },
    "from a file": {"Origin": "null", "Content-Type": "text/plain"},
    "another port": {"Origin": "http://127.0.0.1:1", "Content-Type": "text/plain"},
    "another name": {"Host": "evil.example", "Content-Type": "application/json"},
    "no secret": {"Content-Type": "application/json"},
}


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "knows the secret"])
@pytest.mark.parametrize("how", FORGED)
@pytest.mark.parametrize("path", [LIST, START])
def test_a_forged_request_is_refused(
    path: str, how: str, known: bool, served: Serving, deployment: str
) -> None:
    before = num_flow_runs(deployment)
    headers = FORGED[how] | (signed(served) if known else {})
    answer = httpx.post(served.api + path.format(id=deployment), headers=headers, content="{}")
    assert answer.status_code in (401, 403), answer.text
    assert answer.headers.get("access-control-allow-origin") not in ("*", "http://evil.example")
    assert num_flow_runs(deployment) == before


def test_the_count_would_notice(deployment: str) -> None:
    before = num_flow_runs(deployment)
    with client() as api:
        run = api.create_flow_run_from_deployment(UUID(deployment), state=Paused())
        assert num_flow_runs(deployment) == before + 1
        api._client.delete(f"/flow_runs/{run.id}")
    assert num_flow_runs(deployment) == before


def test_another_page_may_not_even_ask(served: Serving) -> None:
    headers = {
        "Origin": "http://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    answer = httpx.options(served.api + LIST, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/flow_runs/count", "/admin/version", "/csrf-token?client=x"])
def test_nothing_is_told_without_the_secret(path: str, served: Serving) -> None:
    assert httpx.get(served.api + path).status_code in (401, 405)
    assert httpx.get(f"{served.api}/health").status_code == 200, "for who watches the server"


def test_who_knows_the_secret_still_needs_a_token_to_change_something(
    served: Serving, deployment: str
) -> None:
    where = served.api + START.format(id=deployment)
    answer = httpx.post(where, json={}, headers=signed(served))
    assert (answer.status_code, "CSRF" in answer.text) == (403, True)


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}])
def test_nor_may_another_page_send_events(headers: Any, served: Serving) -> None:
    async def ask() -> None:
        address = served.api.replace("http", "ws") + "/events/in"
        async with connect(address, additional_headers=headers, subprotocols=["prefect"]):  # type: ignore[list-item]
            pass

    with pytest.raises(InvalidStatus):
        asyncio.run(ask())


def test_the_commands_that_it_prints_work_in_a_fresh_terminal(served: Serving) -> None:
    said = served.said()
    assert served.secret not in said
    export = re.search(r"export PREFECT_API_URL=.*", said)
    assert export
    env = {k: v for k, v in served.env.items() if k not in ("PREFECT_HOME",)}
    shell = subprocess.run(
        ["sh", "-c", f"{export[0]}; exec .venv/bin/prefect deployment inspect speedtronic/train"],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shell.returncode == 0, shell.stdout + shell.stderr
    asks = re.search(r"the page asks .*: (.*)", said)
    assert asks
    shown = subprocess.run(["sh", "-c", asks[1]], capture_output=True, text=True)
    assert shown.stdout.strip() == served.secret
