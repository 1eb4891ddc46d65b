"""How torch's threads wait for each other: asleep, so that a busy machine slows nothing down."""

import os

# Whoever has set one of these has decided how threads wait.
_DECIDED_BY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def environment() -> dict[str, str]:
    """Return this process's environment, in which OpenMP threads of torch sleep while they wait.

    By default they spin. Beside another busy process a spinning thread takes the processor from
    the one that it waits for, and training slows down 5 to 30 times. Results do not change. What
    the user has set is left alone.

    OpenMP reads the environment once, when torch is loaded: give this to a process at its start.
    """
    decided = any(name in os.environ for name in _DECIDED_BY)
    return {**os.environ, **({} if decided else {"OMP_WAIT_POLICY": "PASSIVE"})}
