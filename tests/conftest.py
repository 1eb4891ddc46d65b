import logging
import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, and lose much when the cores are busy."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


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
