import logging
import os
import signal
from collections.abc import Iterator

# Before torch is imported, and for the processes that tests start: small tensors gain nothing from
# threads, and lose much when the cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from speedtronic.shutdown import ALL_SIGNALS


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
