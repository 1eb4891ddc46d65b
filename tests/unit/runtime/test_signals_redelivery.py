"""A signal whose handler did not run is sent again; one that was handled is not."""

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from speedtronic.runtime.signals import SignalRedelivery
from tests.waiting import wait_until

NUMBER = signal.SIGUSR2


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that the handler was called with."""
    monkeypatch.setattr("speedtronic.runtime.signals.REDELIVERY_S", 0.02)
    found: list[int] = []
    redelivery = SignalRedelivery()

    def handle(number: int, frame: FrameType | None) -> None:
        redelivery.note_handled(number)
        found.append(number)

    former = signal.signal(NUMBER, handle)
    redelivery.start()
    try:
        yield found
    finally:
        redelivery.close()
        signal.signal(NUMBER, former)


def arrive_without_handler() -> None:
    """Do what Python's C handler does of a signal, and leave the Python handler out."""
    write_fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    os.write(write_fd, bytes([NUMBER]))


def test_a_signal_that_came_too_early_for_a_wait_interrupts_it(handled: list[int]) -> None:
    arrive_without_handler()
    assert wait_until(lambda: handled == [NUMBER], 20)


def test_one_that_was_handled_is_not_sent_again(handled: list[int]) -> None:
    signal.raise_signal(NUMBER)
    arrive_without_handler()  # seen by the thread after the first, so once it is done with that
    assert wait_until(lambda: len(handled) >= 2, 20)
    assert handled == [NUMBER] * 2


def test_nothing_is_left_of_it() -> None:
    before = threading.active_count()
    redelivery = SignalRedelivery()
    redelivery.start()
    redelivery.close()
    assert threading.active_count() == before
    assert signal.set_wakeup_fd(-1) == -1
