"""What users may import from the package itself: this list, and nothing of it by accident."""

import subprocess
import sys

import pytest

import speedtronic

PUBLIC = [
    "Checkpoint",
    "CheckpointStore",
    "ChunkWorker",
    "Pointer",
    "RunReport",
    "SpeedtronicConfig",
    "SpeedtronicError",
    "TrainResult",
    "build_runtime",
    "open_storage",
    "register_model",
    "train_from_config",
]


def test_the_list_is_this_one() -> None:
    assert speedtronic.__all__ == PUBLIC
    assert dir(speedtronic) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_there_and_says_what_it_is(name: str) -> None:
    assert (getattr(speedtronic, name).__doc__ or "").strip()


def test_what_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        speedtronic.Trainer  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "from speedtronic import *",
        "from speedtronic.runtime import build_runtime, train_from_config",
        "from speedtronic.model import register_model",
        "from speedtronic.config import SpeedtronicConfig",
        "from flows.train import train",
        "from flows.recovery import recovery",
        "from speedtronic.flows.train import train",
    ],
)
def test_what_users_import_is_found(statement: str) -> None:
    ended = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_types_are_shipped() -> None:
    import importlib.resources

    assert importlib.resources.files("speedtronic").joinpath("py.typed").is_file()
