"""What is told of the work at hand."""

import threading
from collections.abc import Iterator

import pytest

from speedtronic import pulse
from speedtronic.pulse import Sign, beat, latest, rest


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pulse, "_latest", ("starting", None, None, True))
    monkeypatch.setattr(pulse, "_beside", None)
    yield


def beside(*told: str | int) -> None:
    thread = threading.Thread(target=beat, args=told)
    thread.start()
    thread.join()


def test_the_last_word_counts_and_how_far_it_is() -> None:
    assert latest() == Sign("starting", True)
    beat("importing", computing=True)
    beat("loading a checkpoint, bytes", 3, 7)
    assert latest() == Sign("loading a checkpoint, bytes: 3 of 7", False)
    beat("validating, batches", 7)
    assert latest() == Sign("validating, batches: 7", False)


def test_a_thread_beside_does_not_hide_what_the_main_one_does() -> None:
    beat("waiting for data")
    beside("writing, bytes", 5)
    assert latest() == Sign("waiting for data (beside it writing, bytes: 5)", False)
    rest()
    assert latest() == Sign("waiting for data", False)
