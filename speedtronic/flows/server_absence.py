"""Lets a run train on and end in time while Prefect's server cannot be reached.

Left alone, Prefect would try for a minute to show each thing, and at the end for 7 s to send each
event of the time without a server.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
from prefect import get_run_logger
from prefect.settings import (
    PREFECT_CLIENT_MAX_RETRIES,
    get_current_settings,
    temporary_settings,
)

ANSWER_S = 2.0
RETURN_S = 5.0  # that a server may take to return after the last update
END_S = 10.0  # from the last update to the end of the process, when it does not
POLL_S = 0.5

RUN_BY_WORKER = "PREFECT__FLOW_RUN_ID"  # in the environment of such a process

_for_good = ExitStack()


def server_answers() -> bool:
    """Whether the server can be reached now; True as well where the flow has one of its own."""
    api = get_current_settings().api.url
    if not api:
        return True
    try:
        return httpx.get(f"{api}/health", timeout=ANSWER_S).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def ending_in_time() -> Iterator[None]:
    """After the block, in which all is trained, the process ends soon, server or not.

    All that counts is on disk by then. What the server is not told,
    `speedtronic.flows.revival` finds out.
    """
    try:
        yield
    finally:
        _end_in_time()


def _end_in_time() -> None:
    ended = time.monotonic()
    never = threading.Event()
    while not server_answers():
        if time.monotonic() - ended > RETURN_S:
            break
        never.wait(POLL_S)
    else:
        return
    get_run_logger().warning(
        "the server does not answer; what was trained is on disk, and when the server is back, "
        "`python -m speedtronic.flows.revival` tells it"
    )
    # For the rest of this flow run, whose end Prefect is about to report.
    _for_good.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))
    exiting = threading.Event()
    if RUN_BY_WORKER in os.environ:
        exiting.set()
    else:  # a program that called the flow may have more to do
        threading._register_atexit(exiting.set)  # type: ignore[attr-defined]  # atexit is too late
    arguments = (ended + END_S, exiting)
    threading.Thread(target=_end_process, args=arguments, daemon=True).start()


def _end_process(deadline: float, exiting: threading.Event) -> None:
    """End the process at `deadline`, if it has nothing more to do and the server is still away."""
    never = threading.Event()
    while time.monotonic() < deadline or not exiting.is_set():
        if server_answers():
            return
        never.wait(POLL_S)
    failed = RUN_BY_WORKER in os.environ or getattr(sys, "last_value", None) is not None
    os._exit(1 if failed else 0)
