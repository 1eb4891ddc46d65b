import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported, and for the processes that tests start: small tensors gain nothing from
# threads, and lose much when the cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from speedtronic.shutdown import ALL_SIGNALS
from speedtronic.worker.standby import STANDBY

# Those with a server first: they mostly wait, beside whatever computes. One process has all of
# them, so that there is one server.
FIRST = ("flows", "integration", "robustness", "run_of_3_1", "legacy", "powerloss")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give whole files to one process of `-n`, and all with a Prefect server to the same."""
    path = _path(item)
    group = "flows" if path.parts[0] == "flows" else str(path)
    item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long."""
    rank = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(_path(item).parts[0], len(rank)))


def _path(item: pytest.Item) -> Path:
    return item.path.relative_to(Path(__file__).parent)


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
