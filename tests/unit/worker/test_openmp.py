"""Threads of every process that trains or loads soon sleep, unless the user decided otherwise."""

import os
import subprocess
from typing import Any

import pytest

from speedtronic.cli import main
from speedtronic.recovery import LoadProcess
from speedtronic.worker import openmp
from speedtronic.worker.process import ChildProcess

SHORT_WAIT = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}
SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.fixture(autouse=True)
def nothing_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is put back, whatever a test makes of it
        monkeypatch.delenv(name)


class Started(Exception):
    """A process was about to start."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the next process would be started with."""
    arguments: dict[str, Any] = {}

    def record(*_: object, **options: Any) -> None:
        arguments.update(options)
        raise Started

    monkeypatch.setattr(subprocess, "Popen", record)
    return arguments


def test_threads_soon_sleep_and_the_rest_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "1")
    assert openmp.environment() == {**os.environ, **SHORT_WAIT}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_user_has_set_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "3")
    assert openmp.environment() == dict(os.environ)


def test_the_process_of_a_chunk(started: dict[str, Any]) -> None:
    with pytest.raises(Started):
        ChildProcess("speedtronic.worker.chunk_main")
    assert started["env"].items() >= SHORT_WAIT.items()


def test_the_process_that_loads(started: dict[str, Any]) -> None:
    with pytest.raises(Started):
        LoadProcess().load("nowhere", 1)
    assert started["env"].items() >= SHORT_WAIT.items()


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert os.environ.items() >= SHORT_WAIT.items()
