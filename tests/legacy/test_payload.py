"""Payloads of 2.0: read without running code, and what becomes of each part."""

import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from speedtronic.errors import CorruptError
from speedtronic.legacy import payload
from speedtronic.training.optimizers import inherit
from speedtronic.training.rng import restore_rng
from tests.legacy.old_runs import FILES

CPU = torch.device("cpu")


def path_of(name: str, step: int) -> Path:
    return FILES / name / "checkpoints" / f"step_{step:012d}.pt"


def trusted(name: str, step: int) -> dict[str, Any]:
    """Read as 2.0 did, with pickle free to do anything."""
    state: dict[str, Any] = torch.load(path_of(name, step), weights_only=False)
    return state


class Evil:
    """Leaves a file behind when it is unpickled freely."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


# --- reading ---


@pytest.mark.parametrize(("name", "step"), [("tied", 2), ("untied", 3), ("muon", 1)])
def test_what_is_read_is_what_2_0_would_read(name: str, step: int) -> None:
    safe, free = payload.read(path_of(name, step).read_bytes()), trusted(name, step)
    assert safe.keys() == free.keys()
    assert safe["config"] == free["config"]
    for key, value in free["model"].items():
        assert torch.equal(safe["model"][key], value)
    assert safe["rng"]["numpy"][1].words.tolist() == free["rng"]["numpy"][1].tolist()
    assert safe["rng"]["python"] == free["rng"]["python"]


def test_the_names_of_numpy_1_are_read_too(tmp_path: Path) -> None:
    old = tmp_path / "old.pt"
    with zipfile.ZipFile(path_of("tied", 4)) as source, zipfile.ZipFile(old, "w") as target:
        for info in source.infolist():
            data = source.read(info)
            if info.filename.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in data
                data = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            target.writestr(info.filename, data)
    state = payload.read(old.read_bytes())
    expected = trusted("tied", 4)["rng"]["numpy"][1]
    assert state["rng"]["numpy"][1].words.tolist() == expected.tolist()


def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    file, trace = tmp_path / "evil.pt", tmp_path / "was here"
    torch.save({**trusted("tied", 4), "coordinator": Evil(trace)}, file)
    with pytest.raises(CorruptError, match=r"payload needs posix\.mkdir to load"):
        payload.read(file.read_bytes())
    assert not trace.exists()
    torch.load(file, weights_only=False)
    assert trace.exists(), "the file is no threat, so this test shows nothing"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "payload does not load"),
        (b"not a checkpoint", "payload does not load"),
        (pickle.dumps({"step": 1}, protocol=2), "payload does not load"),
        (path_of("tied", 4).read_bytes()[:30_000], "payload does not load"),
    ],
)
def test_what_is_no_payload_is_said_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=message) as caught:
        payload.read(data)
    assert "\n" not in str(caught.value)


def test_a_payload_must_hold_what_a_run_needs(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    torch.save({"model": {}, "step": 3}, file)
    with pytest.raises(CorruptError, match="it lacks optimizer, scheduler, samples, tokens, rng"):
        payload.read(file.read_bytes())
    torch.save([1, 2], file)
    with pytest.raises(CorruptError, match="payload holds a list, expected a dict"):
        payload.read(file.read_bytes())


# --- weights ---


def test_weights_get_todays_names() -> None:
    old = payload.read(path_of("untied", 3).read_bytes())
    new = payload.weights(old)
    pairs = {
        "embedding.weight": "transformer.wte.weight",
        "blocks.1.attention_norm.weight": "transformer.h.1.ln1.weight",
        "blocks.1.attention.query.weight": "transformer.h.1.attn.q_proj.weight",
        "blocks.1.attention.key.weight": "transformer.h.1.attn.k_proj.weight",
        "blocks.1.attention.value.weight": "transformer.h.1.attn.v_proj.weight",
        "blocks.1.attention.out.weight": "transformer.h.1.attn.out_proj.weight",
        "blocks.1.mlp_norm.weight": "transformer.h.1.ln2.weight",
        "blocks.1.mlp.gate.weight": "transformer.h.1.mlp.gate_proj.weight",
        "blocks.1.mlp.up.weight": "transformer.h.1.mlp.up_proj.weight",
        "blocks.1.mlp.down.weight": "transformer.h.1.mlp.down_proj.weight",
        "norm.weight": "transformer.ln_f.weight",
        "head.weight": "lm_head.weight",
    }
    assert len(new) == len(old["model"]) == 3 + 2 * 9
    for today, then in pairs.items():
        assert new[today] is old["model"][then]


def test_names_of_a_model_of_ones_own_stay() -> None:
    model = {"attn.h.weight": torch.ones(1)}
    assert payload.weights({"model": model}) is model


# --- the fault of 2.0.0 ---


def test_2_0_never_trained_the_matrices_of_hidden_layers() -> None:
    second, fourth = trusted("tied", 2)["model"], trusted("tied", 4)["model"]
    same = {name for name in second if torch.equal(second[name], fourth[name])}
    assert same == {name for name in second if name.endswith("_proj.weight")}
    assert len(same) == 2 * 7


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.hidden = nn.Linear(4, 4)
        self.chosen = nn.Linear(4, 4)
        self.chosen._speedtronic_optimizer_role = "adamw"  # by which 2.0 let a module choose
        self.kernel = nn.Conv2d(1, 1, 2)
        self.table = nn.Parameter(torch.ones(2, 2))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.score = nn.Sequential(nn.Linear(4, 1))


def test_what_2_0_gave_to_adamw_of_a_model_of_ones_own() -> None:
    # Checked against route_parameters of the real package.
    assert payload.trained_by_adamw(Own()) == [
        "table",
        "embed.weight",
        "embed.bias",
        "hidden.bias",
        "chosen.weight",
        "chosen.bias",
        "kernel.weight",
        "kernel.bias",
        "score.0.weight",
        "score.0.bias",
    ]


def test_adamw_got_everything_where_nothing_but_hidden_matrices_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    assert payload.trained_by_adamw(model) == ["0.weight", "1.weight"]


def test_inheriting_freezes_and_lets_all_decay() -> None:
    model = nn.Linear(2, 2)
    groups = [
        {"params": [model.weight], "weight_decay": 0.5},
        {"params": [model.bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    inherit(model, optimizer, {"frozen": ["weight"]})
    assert not model.weight.requires_grad and model.bias.requires_grad
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.5]


# --- random states ---


def test_random_states_go_on_as_in_2_0() -> None:
    old = trusted("tied", 4)["rng"]
    new = payload._rng(payload.read(path_of("tied", 4).read_bytes())["rng"], {})
    random.setstate(old["python"])
    np.random.set_state(old["numpy"])
    torch.set_rng_state(old["torch"])
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    restore_rng(new, CPU)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


def test_without_numpy_its_state_is_todays() -> None:
    today = {"numpy": "of today"}
    old = {**trusted("tied", 4)["rng"], "numpy": None}
    assert payload._rng(old, today)["numpy"] == "of today"
