import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported, and for the processes that tests start: small tensors gain nothing from
# threads, and lose much when the cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from xdist.scheduler import LoadScopeScheduling

from speedtronic.shutdown import ALL_SIGNALS
from speedtronic.worker.standby import STANDBY

# Under `nohup` it is ignored, in the processes that tests start too.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What takes long, so that it does not begin last.
FIRST = ("flows", "integration", "robustness", "run_of_3_1", "legacy", "powerloss")


class Scheduling(LoadScopeScheduling):
    """Gives whole files to the processes of `-n`, and all tests with a Prefect server to one."""

    def _split_scope(self, nodeid: str) -> str:
        return "flows" if nodeid.startswith("tests/flows/") else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    rank = {name: number for number, name in enumerate(FIRST)}
    root = Path(__file__).parent
    items.sort(key=lambda item: rank.get(item.path.relative_to(root).parts[0], len(rank)))


@pytest.fixture(scope="session", autouse=True)
def standby_kept() -> Iterator[None]:
    """Keep the standby that the first worker begins, so that later workers fork from it at once."""
    with STANDBY.held():
        yield


@pytest.fixture(autouse=True)
def process_left_as_it_was() -> Iterator[None]:
    """The command line, called in this process, sets up what a process of its own would keep."""
    logger = logging.getLogger("speedtronic")
    handlers, level = logger.handlers[:], logger.level
    former = {number: signal.getsignal(number) for number in ALL_SIGNALS}
    yield
    for handler in logger.handlers[:]:
        if handler not in handlers:
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(level)
    for number, handler in former.items():
        signal.signal(number, handler)
