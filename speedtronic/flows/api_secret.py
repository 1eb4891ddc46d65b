"""Keeps the secret of Prefect's server in a file that only its owner can read."""

import os
import re
import secrets
import stat
import sys
from pathlib import Path

from speedtronic.errors import OutputDirError

NAME = "api-auth-string"
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")


def auth_string(home: Path) -> str:
    """Read the secret in `home`, or make one where there is none.

    A file that is not as it was made (a link, open to others, empty, damaged) may be known to
    somebody else: it is replaced, with a line on standard error.

    Args:
        home: PREFECT_HOME, created if missing.

    Raises:
        OutputDirError: the file can neither be read nor be made; it is as it was.
    """
    path = home / NAME
    try:
        home.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            wrong = _what_is_wrong(path)
            if not wrong:
                return path.read_text(encoding="ascii").strip()
            path.unlink()
            print(f"{path} {wrong}: made a new secret; give it to every client", file=sys.stderr)
        return _make(path)
    except OSError as error:
        raise OutputDirError(
            f"cannot keep the server's secret in {path}: {error.strerror}; remove what is there, "
            "or set PREFECT_HOME to a directory of your own"
        ) from error


def _make(path: Path) -> str:
    secret = secrets.token_urlsafe(32)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(secret + "\n")
        file.flush()
        os.fsync(file.fileno())
    return secret


def _what_is_wrong(path: Path) -> str:
    """Say why the file must not be trusted; empty if it may be. Opens regular files only."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        return "is a link" if stat.S_ISLNK(found.st_mode) else "is no regular file"
    if found.st_uid != os.geteuid():
        return "is another user's"
    if found.st_mode & 0o077:
        return f"could be read by others (mode {stat.S_IMODE(found.st_mode):o})"
    content = path.read_bytes()[:1000].decode("ascii", errors="replace").strip()
    if not _FORM.fullmatch(content):
        return "is damaged" if content else "is empty"
    return ""
