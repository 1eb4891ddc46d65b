"""Ending on a signal at a moment that loses nothing."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stopping_on_signals(request_stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into `request_stop()`, and raise it when the block ends.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    former: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()
        request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        former[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
    if received:
        signal.raise_signal(received[0])
