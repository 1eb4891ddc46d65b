"""A shorter `make soak`."""

from pathlib import Path

from tests.soak import soak


def test_ten_kills_of_one_run_change_nothing(tmp_path: Path) -> None:
    assert soak(10, tmp_path) == []
