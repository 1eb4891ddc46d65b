"""Derives from Prefect's settings where its server listens, under which names, and its secret."""

from dataclasses import dataclass
from shlex import quote
from typing import Self
from urllib.parse import urlsplit

from prefect.settings import get_current_settings

from speedtronic.flows.api_secret import NAME, auth_string

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")  # every address of the machine

CLIENTS_ELSEWHERE = (
    "the server listens on {host}: other machines reach it by the names in\n"
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS (now: {names}), such as http://server.example:4200; every "
    "other name is refused.\nThe secret and all else travel as clear text unless a proxy encrypts "
    "it."
)


@dataclass(frozen=True)
class Access:
    """Holds the address of the server, the names it answers to, and its secret.

    Attributes:
        host: it listens on.
        port: it listens on.
        origins: pages that may use it, such as `http://127.0.0.1:4200`.
        secret: that every client must know.
        secret_in: how a shell reads the secret, for the commands that are shown.
    """

    host: str
    port: int
    origins: tuple[str, ...]
    secret: str
    secret_in: str

    @classmethod
    def from_settings(cls) -> Self:
        """Read Prefect's settings; access that they do not grant is refused.

        Raises:
            OutputDirError: the secret cannot be kept in PREFECT_HOME.
        """
        settings = get_current_settings()
        api = settings.server.api
        named = [origin.strip().rstrip("/") for origin in api.cors_allowed_origins.split(",")]
        local = [name for name in (api.host, *LOOPBACK) if name not in EVERYWHERE]
        origins = [f"http://{_bracketed(name)}:{api.port}" for name in local]
        origins += [origin for origin in named if origin not in ("", "*")]
        if api.auth_string:
            secret, secret_in = (
                api.auth_string.get_secret_value(),
                "$PREFECT_SERVER_API_AUTH_STRING",
            )
        else:
            home = settings.home.absolute()
            secret, secret_in = auth_string(home), f"$(cat {quote(str(home / NAME))})"
        return cls(api.host, api.port, tuple(dict.fromkeys(origins)), secret, secret_in)

    @property
    def page(self) -> str:
        """Return the URL of the server's page, as seen from this machine."""
        name = LOOPBACK[0] if self.host in EVERYWHERE else self.host
        return f"http://{_bracketed(name)}:{self.port}"

    @property
    def names(self) -> frozenset[str]:
        """Return the host names by which a request may address this server."""
        return frozenset((urlsplit(origin).hostname or "").lower() for origin in self.origins)

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the server's process."""
        return {
            "PREFECT_SERVER_API_AUTH_STRING": self.secret,
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(self.origins),
            # From wherever the page came: another name for this machine is another origin.
            "PREFECT_UI_API_URL": "/api",
        }

    def client_command(self) -> str:
        """Return the shell command that lets a terminal talk to the server; it shows no secret."""
        return f'export PREFECT_API_URL={self.page}/api PREFECT_API_AUTH_STRING="{self.secret_in}"'

    def warning(self) -> str:
        """Return a warning if other machines can reach the server; empty if they cannot."""
        if self.host in LOOPBACK:
            return ""
        names = ", ".join(sorted(self.names.difference(LOOPBACK))) or "none"
        return CLIENTS_ELSEWHERE.format(host=self.host, names=names)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
