"""Tells transient failures of the machine from permanent faults of a file or program.

A file counts as damaged only if its bytes are wrong. Running out of file handles, memory or threads
proves nothing about a file, wherever it happens: many libraries import modules in the middle of
their work, which opens files, and a failed import may hide its cause.
"""

import errno
import io
from collections.abc import Iterator

# Errors of the machine or the disk, not of a path.
TRANSIENT_ERRNOS = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS,
    errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK,
})  # fmt: skip

OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "bad_alloc")
_WORDS = (*OUT_OF_MEMORY, "can't start new thread", "Too many open files")


def is_transient(error: OSError) -> bool:
    """Whether the same call may succeed later without anybody repairing something."""
    return error.errno in TRANSIENT_ERRNOS


def is_machine_failure(error: BaseException) -> bool:
    """Whether an exception, or one in its chain of causes, is a failure of the machine.

    For exceptions of code that only computes on data in memory.
    """
    return any(_is(found) for found in _chain(error))


def _is(error: BaseException) -> bool:
    if isinstance(error, io.UnsupportedOperation):  # an OSError that the program itself asked for
        return False
    kinds = OSError | ImportError | MemoryError
    return isinstance(error, kinds) or any(words in str(error) for words in _WORDS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
