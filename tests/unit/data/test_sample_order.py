import dataclasses
from collections import Counter

import numpy as np
import pytest

from speedtronic.data import SampleOrder
from speedtronic.errors import DataError


def make_order(num_samples: int, **changes: int | bool) -> SampleOrder:
    fields = {"seed": 0, "shuffle": True, "drop_last": False, "target_batch_size": 1, **changes}
    return SampleOrder(num_samples, **fields)


def epoch_of(order: SampleOrder, epoch: int) -> list[int]:
    start = epoch * order.epoch_samples
    epochs, indices = order.locate(np.arange(start, start + order.epoch_samples))
    assert epochs.tolist() == [epoch] * order.epoch_samples
    return indices.tolist()


@pytest.mark.parametrize("num_samples", [1, 2, 3, 5, 7, 8, 100, 1000, 4097])
@pytest.mark.parametrize("epoch", [0, 1, 12345])
def test_an_epoch_holds_every_sample_once(num_samples: int, epoch: int) -> None:
    assert sorted(epoch_of(make_order(num_samples), epoch)) == list(range(num_samples))


def test_order_is_pinned_for_ever() -> None:
    """A change here makes every checkpoint resume into another order: do not update, mend."""
    assert epoch_of(make_order(10), 0) == [5, 1, 7, 6, 4, 0, 3, 9, 2, 8]
    assert epoch_of(make_order(10), 1) == [1, 2, 7, 6, 9, 5, 0, 8, 3, 4]
    assert epoch_of(make_order(7, seed=1234), 3) == [4, 3, 1, 5, 2, 6, 0]
    _, indices = make_order(10**12, seed=2**32 - 1).locate(np.array([0, 1, 10**12 - 1, 10**15]))
    assert indices.tolist() == [596811156834, 67296955103, 709650017181, 46691183115]


def test_without_shuffle_epochs_repeat_the_source() -> None:
    epochs, indices = make_order(3, shuffle=False).locate(np.arange(8))
    assert epochs.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert indices.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert epochs.dtype == indices.dtype == np.int64


def test_positions_are_independent_of_the_call() -> None:
    order = make_order(101)
    positions = np.arange(1000)
    epochs, indices = order.locate(positions)
    assert epochs.dtype == indices.dtype == np.int64
    backwards = order.locate(positions[::-1])
    assert np.array_equal(backwards[0][::-1], epochs)
    assert np.array_equal(backwards[1][::-1], indices)
    one_by_one = [int(order.locate(np.array([p]))[1][0]) for p in positions[:150]]
    assert one_by_one == indices[:150].tolist()
    assert order.locate(np.array([], dtype=np.int64))[1].size == 0


def test_epochs_and_seeds_differ() -> None:
    orders = [epoch_of(make_order(50, seed=seed), epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order) for order in orders}) == 25
    # Unrelated orders share about one place in each pair.
    shared = [sum(a == b for a, b in zip(orders[0], other, strict=True)) for other in orders[1:]]
    assert sum(shared) / len(shared) < 3


@pytest.mark.parametrize("num_samples", [3, 4])
def test_every_permutation_of_a_few_is_about_as_likely(num_samples: int) -> None:
    num_permutations = {3: 6, 4: 24}[num_samples]
    expected = 500
    positions = np.arange(num_samples * num_permutations * expected)
    _, indices = make_order(num_samples).locate(positions)
    counts = Counter(map(tuple, indices.reshape(-1, num_samples).tolist()))
    assert len(counts) == num_permutations
    assert all(expected * 0.8 < count < expected * 1.2 for count in counts.values())


def chi_square(values: np.ndarray, num_bins: int, limit: int) -> float:
    counts = np.histogram(values, bins=num_bins, range=(0, limit))[0]
    expected = len(values) / num_bins
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("num_samples", [1000, 4097, 10**9])
def test_looks_uniform(num_samples: int) -> None:
    """Chi-square with 19 degrees of freedom: 43.8 is passed by one true die in a thousand."""
    order = make_order(num_samples)
    over_epochs = order.locate(np.arange(4000) * order.epoch_samples + 7)[1]
    assert chi_square(over_epochs, 20, num_samples) < 43.8
    in_a_row = order.locate(np.arange(900))[1]
    assert chi_square(in_a_row, 20, num_samples) < 43.8
    steps = np.diff(in_a_row) % num_samples
    assert chi_square(steps, 20, num_samples) < 43.8


@pytest.mark.parametrize(
    ("num_samples", "target", "expected"), [(10, 4, 8), (8, 4, 8), (4, 4, 4), (7, 1, 7)]
)
def test_drop_last_trims_the_epoch_to_whole_steps(
    num_samples: int, target: int, expected: int
) -> None:
    trimmed = make_order(num_samples, drop_last=True, target_batch_size=target)
    assert trimmed.epoch_samples == expected
    assert make_order(num_samples, target_batch_size=target).epoch_samples == num_samples
    indices = epoch_of(trimmed, 1)
    assert len(set(indices)) == expected
    assert set(indices) <= set(range(num_samples))


def test_drop_last_leaves_out_other_samples_each_epoch() -> None:
    order = make_order(10, drop_last=True, target_batch_size=8)
    left_out = {frozenset(range(10)) - frozenset(epoch_of(order, epoch)) for epoch in range(20)}
    assert len(left_out) > 5


def test_drop_last_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(DataError, match=r"data has 3, data\.target_batch_size is 4; lower it"):
        make_order(3, drop_last=True, target_batch_size=4)
    assert make_order(3, target_batch_size=4).epoch_samples == 3


def test_no_sample_is_refused() -> None:
    with pytest.raises(DataError, match="no sample"):
        make_order(0)


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_order(3).seed = 1  # type: ignore[misc]
