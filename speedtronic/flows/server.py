"""Runs Prefect's server so that only its own page and those who know its secret can use it.

    python -m speedtronic.flows.server

As `prefect server start`, but a page of another site that is open in the user's browser is refused,
and so is everybody without the secret: who starts a flow run names code that runs here.
"""

import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from prefect.context import refresh_global_settings_context
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from speedtronic.errors import OutputDirError
from speedtronic.flows.api_access import Access

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class OwnPagesOnly:
    """ASGI middleware that refuses what a page of another site makes a browser send.

    A request must call the server by one of its names (a name of the attacker's that leads here is
    not among them), and a page that sends one must be the server's own.
    """

    def __init__(self, app: Any, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        hosts, origins = _headers(scope, b"host"), _headers(scope, b"origin")
        if len(hosts) != 1 or _hostname(hosts[0]) not in self._names:
            await _refuse(scope, send, "the server is not called so; see docs/deployments.md")
        elif any(origin.partition("://")[2] != hosts[0] for origin in origins):
            await _refuse(scope, send, "only the server's own page may ask")
        else:
            await self._app(scope, receive, send)


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key == name]


def _hostname(host: str) -> str:
    """Return the name in a Host header; empty if the header is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _refuse(scope: Scope, send: Send, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": why})
        return
    headers = [(b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": f"{why}\n".encode()})


def main() -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    try:
        access = Access.from_settings()
    except OutputDirError as error:
        print(error, file=sys.stderr)
        return 1
    os.environ.update(access.environment())
    refresh_global_settings_context()  # which has read the environment already
    server = get_current_settings().server
    print(
        "\n".join(filter(None, (access.page, access.client_command(), access.warning()))),
        flush=True,
    )
    uvicorn.run(
        OwnPagesOnly(create_app(final=True), access.names),
        host=access.host,
        port=access.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
