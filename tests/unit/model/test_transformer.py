import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from speedtronic.errors import ConfigError
from speedtronic.model.transformer import (
    ReferenceTransformer,
    causal_and_kept,
    rope_tables,
    rotate,
)

VOCAB = 37
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_seq_len": 24,
    "n_layer": 2,
    "n_head": 4,
    "n_kv_head": 2,
    "d_model": 32,
    "d_ff": 48,
    "dropout": 0.0,
    "tie_weights": True,
    "rope_base": 10_000.0,
}


def make_model(seed: int = 0, **changes: Any) -> ReferenceTransformer:
    torch.manual_seed(seed)
    return ReferenceTransformer(**{**SIZES, **changes})


def make_tokens(batch: int = 3, length: int = 16, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (batch, length), generator=generator)


def test_logits_and_loss() -> None:
    model, tokens, labels = make_model(), make_tokens(), make_tokens(seed=2)
    output = model(tokens, labels=labels)
    assert output["logits"].shape == (3, 16, VOCAB)
    assert set(model(tokens)) == {"logits"}
    chosen = output["logits"].log_softmax(-1).gather(-1, labels[..., None])
    torch.testing.assert_close(output["loss"], -chosen.mean())
    assert output["loss"].item() == pytest.approx(math.log(VOCAB), rel=0.05)  # knows nothing yet


def test_labels_of_minus_100_are_left_out() -> None:
    model, tokens, labels = make_model(), make_tokens(), make_tokens(seed=2)
    labels[:, 5:] = -100
    expected = F.cross_entropy(
        model(tokens)["logits"][:, :5].flatten(0, 1), labels[:, :5].flatten()
    )
    torch.testing.assert_close(model(tokens, labels=labels)["loss"], expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("changed", [1, 7, 15])
def test_a_later_token_changes_no_earlier_logit(changed: int, masked: bool) -> None:
    model, tokens = make_model().eval(), make_tokens()
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % VOCAB
    mask = torch.ones_like(tokens) if masked else None
    before = model(tokens, attention_mask=mask)["logits"]
    after = model(other, attention_mask=mask)["logits"]
    torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, changed:], after[:, changed:], atol=1e-4)


def test_an_earlier_token_changes_later_logits() -> None:
    model, tokens = make_model().eval(), make_tokens()
    other = tokens.clone()
    other[:, 0] = (other[:, 0] + 1) % VOCAB
    assert not torch.allclose(model(tokens)["logits"][:, -1], model(other)["logits"][:, -1])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_full_mask_is_no_mask(dtype: torch.dtype) -> None:
    model, tokens = make_model().eval(), make_tokens()
    mask = torch.ones(tokens.shape, dtype=dtype)
    torch.testing.assert_close(
        model(tokens, attention_mask=mask)["logits"], model(tokens)["logits"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("side", ["left", "right", "middle"])
def test_masked_positions_are_not_seen_by_others(side: str) -> None:
    model, tokens = make_model().eval(), make_tokens()
    hidden = {"left": slice(0, 4), "right": slice(12, 16), "middle": slice(6, 9)}[side]
    mask = torch.ones_like(tokens)
    mask[:, hidden] = 0
    other = tokens.clone()
    other[:, hidden] = (other[:, hidden] + 5) % VOCAB
    before = model(tokens, attention_mask=mask)["logits"]
    after = model(other, attention_mask=mask)["logits"]
    assert before.isfinite().all()
    kept = mask.bool()
    torch.testing.assert_close(before[kept], after[kept], rtol=0, atol=1e-6)


def test_a_masked_position_still_sees_itself() -> None:
    """An empty row is NaN on some devices, and no gradient recovers from it."""
    mask = causal_and_kept(torch.tensor([[0, 1, 1], [1, 0, 1]]))
    assert mask.int().tolist() == [
        [[[1, 0, 0], [0, 1, 0], [0, 1, 1]]],
        [[[1, 0, 0], [1, 1, 0], [1, 0, 1]]],
    ]


@pytest.mark.parametrize("n_kv_head", [1, 2])
def test_shared_heads_equal_repeated_heads(n_kv_head: int) -> None:
    shared, full = make_model(n_kv_head=n_kv_head), make_model(seed=9, n_kv_head=4)
    state = shared.state_dict()
    for name in [name for name in state if name.endswith(("key.weight", "value.weight"))]:
        heads = state[name].unflatten(0, (n_kv_head, -1))
        state[name] = heads.repeat_interleave(4 // n_kv_head, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    tokens = make_tokens()
    torch.testing.assert_close(shared(tokens)["logits"], full(tokens)["logits"], rtol=0, atol=1e-5)


def test_rotation_keeps_lengths_and_sees_only_distances() -> None:
    cos, sin = rope_tables(40, 8, 100.0)
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8).expand(2, 1, 1, 40, 8)
    turned_query, turned_key = rotate(query, cos, sin), rotate(key, cos, sin)
    torch.testing.assert_close(turned_query.norm(dim=-1), query.norm(dim=-1))
    scores = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    for distance in (1, 5, 20):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    assert not torch.allclose(scores[5, 0], scores[20, 0])


def test_rope_tables_are_float32_and_not_saved() -> None:
    model = make_model()
    assert model.cos_TP.dtype == torch.float32
    assert model.cos_TP.shape == (24, 4)
    assert not [name for name in model.state_dict() if "_TP" in name]


def test_rope_base_matters() -> None:
    tokens = make_tokens()
    assert not torch.equal(
        make_model()(tokens)["logits"], make_model(rope_base=50.0)(tokens)["logits"]
    )


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_share_storage(tied: bool) -> None:
    model = make_model(tie_weights=tied)
    assert (model.head.weight.data_ptr() == model.embedding.weight.data_ptr()) == tied
    untied = make_model(tie_weights=False)
    num_saved = sum(p.numel() for p in untied.parameters()) - sum(
        p.numel() for p in model.parameters()
    )
    assert num_saved == (VOCAB * 32 if tied else 0)


@pytest.mark.parametrize("tied", [True, False])
def test_gradient_reaches_every_parameter(tied: bool) -> None:
    model = make_model(tie_weights=tied)
    model(make_tokens(), labels=make_tokens(seed=2))["loss"].backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_initial_weights_follow_depth() -> None:
    model = make_model(n_layer=8, d_model=64, d_ff=256, tie_weights=False)
    for block in model.blocks:
        for layer in (block.attention.query, block.mlp.gate, block.mlp.up):
            assert layer.weight.std().item() == pytest.approx(0.02, rel=0.1)
        for layer in (block.attention.out, block.mlp.down):
            assert layer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.1)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.head.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert torch.equal(model.norm.weight, torch.ones(64))


def test_weights_come_from_the_global_stream() -> None:
    first, second, third = make_model(3), make_model(3), make_model(4)
    assert torch.equal(first.embedding.weight, second.embedding.weight)
    assert not torch.equal(first.embedding.weight, third.embedding.weight)


def test_dropout_draws_from_the_global_stream_while_training_only() -> None:
    model, tokens = make_model(dropout=0.3), make_tokens()

    def logits(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(tokens)["logits"]

    assert torch.equal(logits(0), logits(0))
    assert not torch.equal(logits(0), logits(1))
    model.eval()
    assert torch.equal(logits(0), logits(1))
    torch.testing.assert_close(logits(0), make_model().eval()(tokens)["logits"])


def test_bf16_autocast_trains() -> None:
    model, tokens, labels = make_model(), make_tokens(), make_tokens(seed=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(tokens, labels=labels)
    assert output["logits"].dtype == torch.bfloat16
    assert output["loss"].dtype == torch.float32
    output["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(
        output["loss"], model(tokens, labels=labels)["loss"], rtol=0.01, atol=0
    )


@pytest.mark.parametrize("masked", [False, True])
def test_deterministic_to_the_bit(masked: bool) -> None:
    tokens, labels = make_tokens(), make_tokens(seed=2)
    mask = torch.ones_like(tokens) if masked else None

    def gradients() -> list[Tensor]:
        model = make_model(dropout=0.1)
        model(tokens, labels=labels, attention_mask=mask)["loss"].backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    torch.use_deterministic_algorithms(True)
    try:
        assert all(torch.equal(a, b) for a, b in zip(gradients(), gradients(), strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_longest_sequence_is_taken_and_a_longer_one_refused() -> None:
    model = make_model(max_seq_len=8)
    assert model(make_tokens(length=8))["logits"].shape[1] == 8
    with pytest.raises(ConfigError, match=r"model\.max_seq_len is 8; .* 9 .*block_size"):
        model(make_tokens(length=9))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 30}, r"model\.d_model is 30; .* 4"),
        ({"d_model": 36}, r"model\.d_model is 36; .* 4"),
        ({"n_kv_head": 3}, r"model\.n_kv_head is 3; .* 4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model(**changes)


def test_overfits_one_batch() -> None:
    model, tokens = make_model(), make_tokens(batch=2, length=12)
    labels = tokens.roll(-1, dims=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(50):
        loss = model(tokens, labels=labels)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
