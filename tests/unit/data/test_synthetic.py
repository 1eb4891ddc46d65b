import pytest
import torch

from speedtronic.data import SyntheticSource
from speedtronic.errors import DataError
from speedtronic.model import ReferenceTransformer


def make_source(**changes: int | None) -> SyntheticSource:
    fields = {"num_tokens": 1000, "block_size": 16, "vocab_size": 50, "seed": 0, **changes}
    return SyntheticSource(**fields)  # type: ignore[arg-type]


def test_samples_are_shifted_int64_within_the_vocabulary() -> None:
    source = make_source()
    assert len(source) == 62
    for index in range(len(source)):
        inputs, labels = source[index]["input_ids"], source[index]["labels"]
        assert inputs.dtype == labels.dtype == torch.int64
        assert inputs.shape == labels.shape == (16,)
        assert torch.equal(inputs[1:], labels[:-1])
        assert 0 <= int(inputs.min()) <= int(labels.max()) < 50


def test_samples_are_pinned_for_ever() -> None:
    assert make_source(seed=7)[3]["input_ids"][:4].tolist() == [32, 34, 36, 38]


def test_samples_depend_on_seed_and_index_alone() -> None:
    first = make_source()[5]["labels"]
    torch.manual_seed(99)
    assert torch.equal(make_source()[5]["labels"], first)
    firsts = {tuple(make_source(seed=s)[i]["labels"].tolist()) for s in range(5) for i in range(5)}
    assert len(firsts) > 20


def test_drawing_leaves_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    make_source()[0]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("num_tokens", "expected"), [(None, 6249), (17, 1), (32, 1), (33, 2)])
def test_length(num_tokens: int | None, expected: int) -> None:
    assert len(make_source(num_tokens=num_tokens)) == expected


def test_too_few_tokens_are_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match=r"data\.num_tokens: 16 is less than the 17 "):
        make_source(num_tokens=16)


@pytest.mark.parametrize("index", [-1, 62])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError):
        make_source()[index]


def test_the_loss_falls() -> None:
    source = make_source(num_tokens=10_000)
    torch.manual_seed(0)
    model = ReferenceTransformer(
        vocab_size=50, max_seq_len=16, n_layer=1, n_head=2, n_kv_head=2, d_model=32, d_ff=64
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        batch = source.batch(range(step * 8, step * 8 + 8), [0] * 8)
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
