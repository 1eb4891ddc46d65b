"""Sets how long torch's OpenMP threads spin while they wait for each other."""

import os

# If the user has set one of these, nothing is changed.
_DECIDED_BY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

# Some tenths of a millisecond: longer than the gaps between the operations of a step, much shorter
# than a time slice of another process. GNU's OpenMP counts iterations, LLVM's milliseconds.
_SHORT_WAIT = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def environment() -> dict[str, str]:
    """Return this process's environment, with settings that let waiting OpenMP threads sleep soon.

    By default they spin for a long time. Beside another busy process a spinning thread takes the
    processor from the thread that it waits for, and training slows down 5 to 30 times. Threads that
    sleep at once cost an idle machine up to half its speed where operations are short. Results do
    not change. What the user has set stays.

    OpenMP reads the environment only when torch is loaded, so pass this to a process at its start.
    """
    decided = any(name in os.environ for name in _DECIDED_BY)
    return {**os.environ, **({} if decided else _SHORT_WAIT)}
