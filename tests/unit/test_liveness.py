"""What is told of the work at hand."""

import threading
from collections.abc import Iterator

import pytest

from speedtronic import liveness
from speedtronic.liveness import Activity, current_activity, report_idle, report_progress


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(liveness, "_latest", ("starting", None, None, True))
    monkeypatch.setattr(liveness, "_beside", None)
    yield


def beside(*told: str | int) -> None:
    thread = threading.Thread(target=report_progress, args=told)
    thread.start()
    thread.join()


def test_the_last_word_counts_and_how_far_it_is() -> None:
    assert current_activity() == Activity("starting", True)
    report_progress("importing", computing=True)
    report_progress("loading a checkpoint, bytes", 3, 7)
    assert current_activity() == Activity("loading a checkpoint, bytes: 3 of 7", False)
    report_progress("validating, batches", 7)
    assert current_activity() == Activity("validating, batches: 7", False)


def test_a_thread_beside_does_not_hide_what_the_main_one_does() -> None:
    report_progress("waiting for data")
    beside("writing, bytes", 5)
    assert current_activity() == Activity("waiting for data (beside it writing, bytes: 5)", False)
    report_idle()
    assert current_activity() == Activity("waiting for data", False)
