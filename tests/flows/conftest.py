"""One server for all flow tests of a process, started as README says."""

import signal
from collections.abc import Iterator

import pytest

from tests.flows.serving import Serving


@pytest.fixture(scope="session", autouse=True)
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    serving = Serving(tmp_path_factory.mktemp("prefect"))
    try:
        serving.start()
        with serving.as_client():
            yield serving
    finally:
        if serving.process and serving.process.poll() is None:
            serving.process.send_signal(signal.SIGINT)
            serving.process.wait(120)
