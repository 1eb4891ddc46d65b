"""Who may talk to the server: its own page by one of its names, and what needs no browser."""

import asyncio
from typing import Any

import pytest
from prefect import settings as prefect_settings

from speedtronic.flows.api_access import Access
from speedtronic.flows.server import OwnPagesOnly

NAMES = frozenset({"127.0.0.1", "localhost", "::1", "gpu.example"})


def answer(headers: list[tuple[str, str]], kind: str = "http") -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "let in"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {}

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    asyncio.run(OwnPagesOnly(app, NAMES)({"type": kind, "headers": raw}, receive, send))
    return sent


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        [("host", "127.0.0.1:4200")],
        [("host", "localhost:8080"), ("origin", "http://localhost:8080")],  # through a tunnel
        [("host", "[::1]:4200"), ("origin", "http://[::1]:4200")],
        [("host", "GPU.example"), ("origin", "https://gpu.example")],  # through a proxy
    ],
)
def test_its_own_page_and_programs_are_let_in(headers: Any, kind: str) -> None:
    assert answer(headers, kind) == [{"type": "let in"}]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("host", "")],
        [("host", "evil.example:4200")],  # DNS rebinding
        [("host", "evil.example:4200"), ("origin", "http://evil.example:4200")],
        [("host", "127.0.0.1.evil.example")],
        [("host", "evil.example@127.0.0.1:4200"), ("origin", "http://evil.example")],
        [("host", "[::1")],
        [("host", "0.0.0.0:4200")],
        [("host", "127.0.0.1:4200"), ("host", "evil.example")],
        [("host", "127.0.0.1:4200"), ("origin", "http://evil.example")],
        [("host", "127.0.0.1:4200"), ("origin", "null")],
        [("host", "127.0.0.1:4200"), ("origin", "")],
        [("host", "127.0.0.1:4200"), ("origin", "http://127.0.0.1:8000")],  # another local page
        [("host", "127.0.0.1:4200"), ("origin", "http://localhost:4200")],
    ],
)
def test_everybody_else_is_refused(headers: Any, kind: str) -> None:
    first = answer(headers, kind)[0]
    assert first.get("status", first.get("code")) in (403, 1008), first


def test_the_life_of_the_application_is_none_of_its_business() -> None:
    assert answer([], "lifespan") == [{"type": "let in"}]


def access(tmp_path: Any, **changes: Any) -> Access:
    given = {
        "PREFECT_HOME": tmp_path,
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": 4200,
        **changes,
    }
    settings = {getattr(prefect_settings, name): value for name, value in given.items()}
    with prefect_settings.temporary_settings(settings):
        return Access.from_settings()


def test_by_default_it_is_reached_from_this_machine_only(tmp_path: Any) -> None:
    found = access(tmp_path)
    assert found.names == {"127.0.0.1", "localhost", "::1"}
    assert "*" not in found.environment()["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"]
    assert found.warning() == ""
    assert found.secret not in found.client_command()


def test_who_serves_other_machines_is_told_what_to_set(tmp_path: Any) -> None:
    open_to_all = access(tmp_path, PREFECT_SERVER_API_HOST="0.0.0.0")
    assert open_to_all.page == "http://127.0.0.1:4200", "0.0.0.0 is no address to go to"
    assert "0.0.0.0" not in open_to_all.names
    assert "PREFECT_SERVER_CORS_ALLOWED_ORIGINS (now: none)" in open_to_all.warning()
    named = access(
        tmp_path,
        PREFECT_SERVER_API_HOST="0.0.0.0",
        PREFECT_SERVER_CORS_ALLOWED_ORIGINS="http://gpu.example:4200, https://train.example/",
    )
    assert {"gpu.example", "train.example"} <= named.names
    assert "gpu.example, train.example" in named.warning()


def test_a_secret_of_the_users_own_is_taken(tmp_path: Any) -> None:
    found = access(tmp_path, PREFECT_SERVER_API_AUTH_STRING="admin:mine")
    assert found.secret == "admin:mine"
    assert "admin:mine" not in found.client_command()
    assert list(tmp_path.iterdir()) == []
