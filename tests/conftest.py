import logging
import os
import signal
from collections.abc import Iterator

# Before torch is imported, and for the processes that tests start: small tensors gain nothing from
# threads, and lose much when the cores are busy.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest


@pytest.fixture(autouse=True)
def process_left_as_it_was() -> Iterator[None]:
    """The command line, called in this process, sets up what a process of its own would keep."""
    logger = logging.getLogger("speedtronic")
    handlers, level = logger.handlers[:], logger.level
    on_sigterm = signal.getsignal(signal.SIGTERM)
    yield
    for handler in logger.handlers[:]:
        if handler not in handlers:
            logger.removeHandler(handler)
            handler.close()
    logger.setLevel(level)
    signal.signal(signal.SIGTERM, on_sigterm)
