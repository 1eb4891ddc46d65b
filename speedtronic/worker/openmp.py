"""How long torch's threads wait awake for each other, before they sleep."""

import os

# Whoever has set one of these has decided how threads wait.
_DECIDED_BY = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

# Some tenths of a millisecond: longer than the gaps between the operations of a step, much shorter
# than the time for which another process keeps a processor. In rounds of GNU's OpenMP, and in
# milliseconds of LLVM's.
_SHORT_WAIT = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}


def environment() -> dict[str, str]:
    """Return this process's environment, in which waiting OpenMP threads of torch soon sleep.

    By default they spin for long. Beside another busy process a spinning thread takes the processor
    from the one that it waits for, and training slows down 5 to 30 times. Threads that sleep at
    once cost an idle machine up to half its speed, where operations are short. Results do not
    change. What the user has set is left alone.

    OpenMP reads the environment once, when torch is loaded: give this to a process at its start.
    """
    decided = any(name in os.environ for name in _DECIDED_BY)
    return {**os.environ, **({} if decided else _SHORT_WAIT)}
