"""Define a decoder-only transformer: pre-RMSNorm, RoPE, grouped-query attention, SwiGLU.

Tensor names end in their shape:
    B  batch            H  query heads          V  vocabulary
    T  positions        K  key and value heads  F  width of the MLP
    D  model width      C  channels of a head   P  pairs of channels, C / 2
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from speedtronic.errors import ConfigError

INIT_STD = 0.02
NORM_EPS = 1e-5
IGNORE_INDEX = -100


def rope_tables(num_positions: int, num_channels: int, base: float) -> tuple[Tensor, Tensor]:
    """Compute cosines and sines of the rotary embedding, each float32 of shape (T, P).

    Pair p turns by `base ** (-p / P)` radians a position. Source: Su et al. 2021, RoFormer, eq. 15.
    """
    num_pairs = num_channels // 2
    speed_P = base ** (-torch.arange(num_pairs, dtype=torch.float32) / num_pairs)
    angle_TP = torch.outer(torch.arange(num_positions, dtype=torch.float32), speed_P)
    return angle_TP.cos(), angle_TP.sin()


def rotate(x_BHTC: Tensor, cos_TP: Tensor, sin_TP: Tensor) -> Tensor:
    """Rotate channels p and p + P as a pair; computed in float32, returned in x's dtype."""
    a_BHTP, b_BHTP = x_BHTC.float().chunk(2, dim=-1)
    turned = (a_BHTP * cos_TP - b_BHTP * sin_TP, a_BHTP * sin_TP + b_BHTP * cos_TP)
    return torch.cat(turned, dim=-1).to(x_BHTC.dtype)


def causal_and_kept(attention_mask_BT: Tensor) -> Tensor:
    """Compute the bool mask (B, 1, T, T) of which position sees which: earlier kept ones, itself.

    A position always sees itself, so that no row of padding is empty and turns into NaN.
    """
    num_positions = attention_mask_BT.size(1)
    ones_TT = torch.ones(
        num_positions, num_positions, dtype=torch.bool, device=attention_mask_BT.device
    )
    seen_BTT = ones_TT.tril() & attention_mask_BT.bool()[:, None, :]
    return (seen_BTT | ones_TT.tril().triu())[:, None]


class Attention(nn.Module):
    """Causal self-attention; `n_head / n_kv_head` query heads share one key and value head."""

    def __init__(self, d_model: int, n_head: int, n_kv_head: int, dropout: float) -> None:
        super().__init__()
        self.num_channels = d_model // n_head
        self.shares_kv = n_kv_head != n_head
        self.dropout = dropout
        self.query = nn.Linear(d_model, n_head * self.num_channels, bias=False)
        self.key = nn.Linear(d_model, n_kv_head * self.num_channels, bias=False)
        self.value = nn.Linear(d_model, n_kv_head * self.num_channels, bias=False)
        self.out = nn.Linear(n_head * self.num_channels, d_model, bias=False)

    def _heads(self, x_BTD: Tensor) -> Tensor:
        x_BTHC: Tensor = x_BTD.unflatten(-1, (-1, self.num_channels))
        return x_BTHC.transpose(1, 2)

    def forward(
        self, x_BTD: Tensor, cos_TP: Tensor, sin_TP: Tensor, mask_B1TT: Tensor | None
    ) -> Tensor:
        q_BHTC = rotate(self._heads(self.query(x_BTD)), cos_TP, sin_TP)
        k_BKTC = rotate(self._heads(self.key(x_BTD)), cos_TP, sin_TP)
        v_BKTC = self._heads(self.value(x_BTD))
        y_BHTC = F.scaled_dot_product_attention(
            q_BHTC,
            k_BKTC,
            v_BKTC,
            attn_mask=mask_B1TT,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask_B1TT is None,
            enable_gqa=self.shares_kv,
        )
        y_BTD: Tensor = self.out(y_BHTC.transpose(1, 2).flatten(2))
        return y_BTD


class SwiGLU(nn.Module):
    """`down(silu(gate(x)) * up(x))`. Source: Shazeer 2020, GLU Variants Improve Transformer.

    As there, three matrices two thirds as wide have the parameters of two of the nominal width.
    """

    def __init__(self, d_model: int, d_ff: int, multiple_of: int) -> None:
        super().__init__()
        width = math.ceil(d_ff * 2 // 3 / multiple_of) * multiple_of
        self.gate = nn.Linear(d_model, width, bias=False)
        self.up = nn.Linear(d_model, width, bias=False)
        self.down = nn.Linear(width, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.silu(self.gate(x_BTD)) * self.up(x_BTD)
        y_BTD: Tensor = self.down(h_BTF)
        return y_BTD


class Block(nn.Module):
    """Attention, then the MLP, each added to the residual stream."""

    def __init__(
        self, d_model: int, n_head: int, n_kv_head: int, d_ff: int, dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.attention = Attention(d_model, n_head, n_kv_head, dropout)
        self.mlp_norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.mlp = SwiGLU(d_model, d_ff, multiple_of=n_head)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_BTD: Tensor, cos_TP: Tensor, sin_TP: Tensor, mask_B1TT: Tensor | None
    ) -> Tensor:
        y_BTD = self.attention(self.attention_norm(x_BTD), cos_TP, sin_TP, mask_B1TT)
        x_BTD = x_BTD + self.dropout(y_BTD)
        out_BTD: Tensor = x_BTD + self.dropout(self.mlp(self.mlp_norm(x_BTD)))
        return out_BTD


class ReferenceTransformer(nn.Module):
    """Next-token model; what it computes depends on weights, inputs and the torch RNG alone.

    Args:
        vocab_size: token ids are 0 .. vocab_size - 1.
        max_seq_len: longest sequence `forward` takes.
        n_layer: number of blocks.
        n_head: query heads; divides `d_model` into heads of an even number of channels.
        n_kv_head: key and value heads; divides `n_head`.
        d_model: width of the residual stream.
        d_ff: nominal width of the MLP, see `SwiGLU`.
        dropout: probability, on the embedding, on attention weights and on both residual branches.
        tie_weights: share one matrix between the embedding and the output layer.
        rope_base: positions in which the slowest pair of channels turns by about one radian.

    Raises:
        ConfigError: the sizes do not divide as above.
    """

    cos_TP: Tensor
    sin_TP: Tensor

    def __init__(
        self,
        vocab_size: int,
        max_seq_len: int,
        n_layer: int,
        n_head: int,
        n_kv_head: int,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        tie_weights: bool = True,
        rope_base: float = 10_000.0,
    ) -> None:
        super().__init__()
        if d_model % (2 * n_head):
            raise ConfigError(
                f"model.d_model is {d_model}; it must be an even multiple of model.n_head, {n_head}"
            )
        if n_head % n_kv_head:
            raise ConfigError(
                f"model.n_kv_head is {n_kv_head}; it must divide model.n_head, {n_head}"
            )
        self.max_seq_len = max_seq_len
        self.gradient_checkpointing = False
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(d_model, n_head, n_kv_head, d_ff, dropout) for _ in range(n_layer)
        )
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        if tie_weights:
            self.head.weight = self.embedding.weight
        cos_TP, sin_TP = rope_tables(max_seq_len, d_model // n_head, rope_base)
        self.register_buffer("cos_TP", cos_TP, persistent=False)
        self.register_buffer("sin_TP", sin_TP, persistent=False)
        self._init_weights()

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Keep only the blocks' inputs and compute the rest again in the backward pass.

        The random state is put back for that, so the results are the same to the bit.
        """
        self.gradient_checkpointing = enabled

    def _init_weights(self) -> None:
        """Draw normal weights; those that write to the residual stream shrink with their number.

        Source: Radford et al. 2019, GPT-2, section 2.3 (two branches a block).
        """
        branch_std = INIT_STD / math.sqrt(2 * len(self.blocks))
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                writes_to_stream = name.endswith(("attention.out.weight", "mlp.down.weight"))
                nn.init.normal_(weight, std=branch_std if writes_to_stream else INIT_STD)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Compute the logits of every position and, given labels, their mean cross entropy.

        Args:
            input_ids: int64 (B, T), T <= max_seq_len.
            labels: int64 (B, T), shifted already: labels[t] follows input_ids[t]; -100 is left out.
            attention_mask: (B, T), nonzero where a position may be seen; None means everywhere.

        Returns:
            `logits` (B, T, V) and, given labels, `loss`: a float32 scalar, in nats per label; NaN
            if every label is -100.

        Raises:
            ConfigError: the sequence is longer than max_seq_len.
        """
        num_positions = input_ids.size(1)
        if num_positions > self.max_seq_len:
            raise ConfigError(
                f"model.max_seq_len is {self.max_seq_len}; a sequence has {num_positions} tokens; "
                "raise it or lower data.block_size"
            )
        mask_B1TT = None if attention_mask is None else causal_and_kept(attention_mask)
        cos_TP, sin_TP = self.cos_TP[:num_positions], self.sin_TP[:num_positions]
        x_BTD = self.dropout(self.embedding(input_ids))
        for block in self.blocks:
            if self.gradient_checkpointing and self.training:
                x_BTD = checkpoint(block, x_BTD, cos_TP, sin_TP, mask_B1TT, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, cos_TP, sin_TP, mask_B1TT)
        logits_BTV = self.head(self.norm(x_BTD))
        output = {"logits": logits_BTV}
        if labels is not None:
            output["loss"] = F.cross_entropy(
                logits_BTV.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX
            )
        return output
