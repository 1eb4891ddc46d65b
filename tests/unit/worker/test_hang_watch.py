"""Whether a process hangs, with a clock and processor times of our own."""

import multiprocessing
import os
import time

from speedtronic.worker.hang_watch import HangWatch, cpu_s
from speedtronic.worker.messages import Alive, Event, LogLine, Saved, StepReached
from tests.waiting import wait_until


class Process:
    """A process of which only its time and its processor time are known."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cpu: float | None = 0.0
        self.watch = HangWatch(10.0, lambda: self.cpu, lambda: self.now)

    def hangs_after(self, seconds: float, cpu_share: float = 0.0) -> bool:
        """Whether it was ever taken for hung within `seconds` more, looked at twice a second."""
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            if self.cpu is not None:
                self.cpu += 0.5 * cpu_share
            if self.watch.is_hung():
                return True
        return False

    def tell(self, event: Event) -> None:
        self.watch.on_event(event)

    def does(self, doing: str, *, computing: bool = False) -> None:
        self.tell(Alive(doing, computing))


def test_a_start_lives_as_long_as_it_computes() -> None:
    process = Process()
    assert not process.hangs_after(60, cpu_share=0.3)
    assert process.hangs_after(16), "it sleeps"
    assert process.watch.doing == "starting"


def test_a_compilation_that_waits_is_hung() -> None:
    process = Process()
    process.does("training, micro batches: 1 of 1", computing=True)
    assert not process.hangs_after(60, cpu_share=0.3)
    assert process.hangs_after(20, cpu_share=0.01), "as threads that poll use"


def test_without_processor_times_only_what_is_told_counts() -> None:
    process = Process()
    process.cpu = None
    assert process.hangs_after(11)


def test_what_changes_is_progress_whatever_it_is() -> None:
    process = Process()
    for number in range(5):
        process.does(f"skipping samples: {number} of 5")
        assert not process.hangs_after(9)
    process.tell(Saved(3))
    assert not process.hangs_after(9)
    process.tell(StepReached(4))
    assert not process.hangs_after(9)
    assert process.watch.step == 4
    assert process.hangs_after(3)
    assert process.watch.doing == "skipping samples: 4 of 5"


def test_what_is_only_repeated_is_none() -> None:
    process = Process()
    for _ in range(3):
        process.does("validating, batches: 7")
        process.tell(StepReached(4))
        process.tell(LogLine(20, "a", "still here"))
        late = process.hangs_after(4)
    assert late


def test_processor_time_is_none_where_progress_is_counted() -> None:
    process = Process()
    process.does("waiting for data, micro batches: 1 of 1")
    assert process.hangs_after(11, cpu_share=1.0), "what spins for ever"


def _compute() -> None:
    while True:
        pass


def test_processor_time_is_that_of_the_whole_tree() -> None:
    before = cpu_s(os.getpid())
    assert before is not None
    child = multiprocessing.get_context("fork").Process(target=_compute, daemon=True)
    own = time.process_time()
    child.start()
    try:
        assert wait_until(lambda: (cpu_s(child.pid or 0) or 0) > 0.2, 60)
        spent = (cpu_s(os.getpid()) or 0) - before
        assert spent - (time.process_time() - own) > 0.1
    finally:
        child.kill()
        child.join()
    assert cpu_s(child.pid or 0) is None
