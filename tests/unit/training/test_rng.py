"""The global random streams: where they stood is where they go on."""

import io
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic.errors import RestoreError
from speedtronic.training.rng import capture_rng, restore_rng, seed_all

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def streams_left_as_they_were() -> Iterator[None]:
    before = capture_rng(CPU)
    yield
    restore_rng(before, CPU)


def draw() -> list[Any]:
    """A few numbers of every stream, in every way that keeps something back for the next call."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.standard_normal(3).tolist(),
        np.random.randint(1 << 30),
        torch.rand(3).tolist(),
        torch.randn(1).item(),
    ]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("gaussians", [0, 1, 2])
def test_goes_on_where_it_was(gaussians: int) -> None:
    seed_all(7)
    draw()
    for _ in range(gaussians):  # an odd number leaves one cached in both generators
        random.gauss(0, 1)
        np.random.standard_normal()
    state = through_a_file(capture_rng(CPU))
    expected = draw(), draw()
    seed_all(8)
    draw()
    restore_rng(state, CPU)
    assert (draw(), draw()) == expected


def test_the_cached_gaussian_is_part_of_it() -> None:
    seed_all(7)
    random.gauss(0, 1)
    np.random.standard_normal()
    state = capture_rng(CPU)
    assert state["python"]["gauss"] is not None
    assert state["numpy"]["has_gauss"] == 1


def test_capturing_draws_nothing() -> None:
    seed_all(7)
    expected = draw()
    seed_all(7)
    capture_rng(CPU)
    assert draw() == expected


def test_a_captured_state_does_not_move_with_the_stream() -> None:
    state = capture_rng(CPU)
    before = through_a_file(state)
    draw()
    restore_rng(state, CPU)
    first = draw()
    restore_rng(before, CPU)
    assert draw() == first


@pytest.mark.parametrize("seed", [0, 1234, 2**32 - 1])
def test_a_seed_decides_every_stream(seed: int) -> None:
    seed_all(seed)
    first = draw()
    seed_all(seed)
    assert draw() == first
    seed_all(seed + 1)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "no Python state": lambda state: state.pop("python"),
    "no NumPy state": lambda state: state.pop("numpy"),
    "no torch state": lambda state: state.pop("torch"),
    "too few Python words": lambda state: state["python"].update(words=torch.arange(3)),
    "another Python version": lambda state: state["python"].update(version=99),
    "too few NumPy words": lambda state: state["numpy"].update(words=torch.arange(3)),
    "another NumPy generator": lambda state: state["numpy"].update(name="PCG64"),
    "too few torch bytes": lambda state: state.update(torch=torch.zeros(3, dtype=torch.uint8)),
    "torch state of another type": lambda state: state.update(torch=state["torch"].long()),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_restored_is_an_error(name: str) -> None:
    state = capture_rng(CPU)
    BROKEN[name](state)
    with pytest.raises(RestoreError, match="random number generator cannot be restored"):
        restore_rng(state, CPU)


@pytest.mark.parametrize(
    ("device", "state", "said"),
    [
        ("cuda", [torch.zeros(16, dtype=torch.uint8)] * 2, "2 CUDA devices"),
        ("mps", torch.zeros(16, dtype=torch.uint8), "the mps device"),
    ],
)
def test_a_device_that_is_not_there_is_skipped_with_a_warning(
    device: str, state: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    seed_all(7)
    saved = {**capture_rng(CPU), device: state}
    expected = draw()
    with caplog.at_level(logging.WARNING):
        restore_rng(saved, CPU)
    assert said in caplog.text
    assert "skipped" in caplog.text
    assert draw() == expected
