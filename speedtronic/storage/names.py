"""Names the lock and the temporary files in every kind of storage.

.lock                       names the one process that writes
.<name>.tmp-<random>        an unfinished write; garbage once its writer has ended
"""

import re
import secrets

LOCK = ".lock"

_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{16}")


def temporary_name(name: str) -> str:
    """Return a unique name, directly below the root, for a file that is to become `name`."""
    return f".{name.rpartition('/')[2]}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Return whether `name` was made by `temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None
