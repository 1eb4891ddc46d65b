"""Names that every kind of storage gives to its lock and to files that are not published yet.

.lock                       held by the one process that writes
.<name>.tmp-<random>        a write that has not been published; junk once its writer is gone
"""

import re
import secrets

LOCK = ".lock"

_TEMPORARY = re.compile(r"\..+\.tmp-[0-9a-f]{16}")


def temporary_name(name: str) -> str:
    """Return a new name, directly under the root, for bytes that become `name` when published."""
    return f".{name.rpartition('/')[2]}.tmp-{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    """Return whether `name` was made by `temporary_name`."""
    return _TEMPORARY.fullmatch(name) is not None
