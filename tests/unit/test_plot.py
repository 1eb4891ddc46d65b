"""The picture of a loss: drawn from whatever there is."""

from pathlib import Path
from typing import Any

import pytest

from speedtronic import plot
from speedtronic.plot import MAX_POINTS, plot_losses


def events(number: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": 1.0 / step} for step in range(1, number + 1)]


@pytest.mark.parametrize("number", [0, 1, MAX_POINTS * 3])
def test_any_number_of_steps_makes_a_picture(number: int, tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    plot_losses(path, {"run": events(number)}, marks={"run": [0, 20]}, title="t")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_long_run_is_averaged_in_groups() -> None:
    steps, losses = plot._thinned(events(MAX_POINTS * 3), "loss")
    assert len(steps) == MAX_POINTS
    assert (steps[0], losses[0]) == (2.0, (1 + 1 / 2 + 1 / 3) / 3)
    assert steps[-1] == MAX_POINTS * 3 - 1


def test_a_validation_without_a_loss_is_left_out(tmp_path: Path) -> None:
    validation = [{"step": 1, "val_loss": None}, {"step": 2, "val_loss": 1.0}]
    for shown in (validation, validation[:1]):
        plot_losses(tmp_path / "a.png", {"run": events(3)}, marks={}, title="t", validation=shown)
