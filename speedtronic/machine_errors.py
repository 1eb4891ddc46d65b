"""Tells a machine in trouble, where another try may fare better, from what is wrong for good.

A file is damaged only where something about its bytes says so. Out of file handles, memory or
threads says nothing of them, wherever it strikes: many libraries import modules in the middle of
their work, which opens files, and an import may hide why it failed.
"""

import errno
import io
from collections.abc import Iterator

# The machine's trouble and not the path's.
TRANSIENT_ERRNOS = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS,
    errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK,
})  # fmt: skip

OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "bad_alloc")
_WORDS = (*OUT_OF_MEMORY, "can't start new thread", "Too many open files")


def is_transient(error: OSError) -> bool:
    """Whether the same call may succeed later, with nothing mended by a person."""
    return error.errno in TRANSIENT_ERRNOS


def is_machine_failure(error: BaseException) -> bool:
    """Whether an exception of code that only computes, or one that it came from, is no fault of
    what the code was given."""
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
