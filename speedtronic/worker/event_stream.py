"""Sends the events of a training child to its parent: log lines, activity, results."""

import logging
import threading
from typing import IO

from speedtronic import liveness
from speedtronic.liveness import end_as_orphan
from speedtronic.worker.messages import (
    Alive,
    Event,
    LogLine,
    to_line,
)

ALIVE_EVENT_EVERY_S = 0.2


class EventStream:
    """Sends events to the parent, from any thread, and ends this process if the parent is gone.

    The parent closes its side only when it is done with this process, so a broken pipe means that.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._sending = threading.Lock()

    def send(self, event: Event) -> None:
        """Send one event."""
        try:
            with self._sending:
                self._stream.write(to_line(event))
                self._stream.flush()
        except BrokenPipeError:
            end_as_orphan()


def report_activity(events: EventStream) -> None:
    """Send `Alive` a few times a second, if what `liveness` knows has changed."""
    sent, never = None, threading.Event()
    while not never.wait(ALIVE_EVENT_EVERY_S):
        activity = liveness.current_activity()
        if activity != sent:
            events.send(Alive(activity.doing, activity.computing))
        sent = activity


class LogToEvents(logging.Handler):
    def __init__(self, events: EventStream) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        self._events.send(LogLine(record.levelno, record.name, self.format(record)))
