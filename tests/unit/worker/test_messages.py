"""Messages between processes arrive as they were sent."""

import math
from pathlib import Path

import pytest

from speedtronic.checkpoint import Manifest, Pointer
from speedtronic.training.trainer import TrainResult
from speedtronic.worker.messages import (
    Alive,
    Done,
    Event,
    Facts,
    Failed,
    Loaded,
    LogLine,
    Rejection,
    Request,
    Restore,
    Restored,
    Saved,
    StepReached,
    Train,
    parse_event,
    parse_loaded,
    parse_request,
    to_line,
)

CHECKPOINTS = Path(__file__).parents[2] / "run_of_3_1/run/checkpoints"
POINTER = Pointer(
    step=4,
    file="step_000000000004.pt",
    digest="xxh3_128:" + 32 * "0",
    state_digest="state1:" + 32 * "0",
    run_id="a",
    samples=16,
    tokens=512,
)
RESULT = TrainResult(4, 16, 512, 2.5, 0, 1.5, {"val_loss": 2.25, "save_stall_s": 0.5})


@pytest.mark.parametrize(
    "request_",
    [
        Restore(),
        Restore(Rejection(8, "killed")),
        Train(12, None),
        Train(12, POINTER, Rejection(8, "a\nb")),
    ],
)
def test_a_request_arrives_as_it_was_sent(request_: Request) -> None:
    line = to_line(request_)
    assert line.count("\n") == 1
    assert parse_request(line) == request_


@pytest.mark.parametrize(
    "event",
    [
        LogLine(20, "speedtronic.a", "two\nlines \u2028"),
        Restored(0),
        StepReached(7),
        Saved(8),
        Alive("validating, batches: 7", False),
        Failed("DataError", "no data", False, "Traceback"),
        Done(RESULT, POINTER, ["a note"]),
        Done(RESULT, None, []),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: Event) -> None:
    line = to_line(event)
    assert line.count("\n") == 1
    assert parse_event(line.encode()) == event


def test_a_loss_that_is_not_a_number_arrives() -> None:
    event = parse_event(to_line(Done(TrainResult(4, 16, 512, math.nan, 0, 1.5), None, [])))
    assert isinstance(event, Done)
    assert event.loss is not None
    assert math.isnan(event.loss)
    assert event.val_loss is None


def test_what_a_load_found_arrives_whatever_its_type() -> None:
    path = sorted(CHECKPOINTS.glob("step_*.json"))[0]
    manifest = Manifest.from_bytes(path.read_bytes())
    facts = Facts("four", None, [1], [], {}, 3, {}, [], [], "", 0.5)  # type: ignore[arg-type]
    sent = Loaded("loaded", "", manifest, facts)
    arrived = parse_loaded(to_line(sent))
    assert arrived == sent
    assert arrived.manifest is not None
    assert arrived.manifest.model_fields_set == manifest.model_fields_set
    damaged = Loaded("corrupt", "it is cut short")
    assert parse_loaded(to_line(damaged)) == damaged


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(ValueError, match="tag"):
        parse_event('{"event": "sung"}')
    with pytest.raises(TypeError, match="a set cannot be sent"):
        to_line(Failed("E", {"a"}, False, ""))  # type: ignore[arg-type]
