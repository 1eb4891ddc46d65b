"""One pass over a payload: the same tensors as plain torch gives, or a clear refusal."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from speedtronic.checkpoint import codec, reading
from speedtronic.checkpoint.digest import bytes_digest
from speedtronic.errors import CorruptError
from tests.recipes import assert_same_tensors

LARGE = reading.LENT_BYTES // 4  # elements


def rich_state() -> dict[str, Any]:
    """Below, at and above the size from which memory is lent; ties, views, types, an empty one."""
    weight = torch.randn(3 * LARGE)
    return {
        "sizes": [torch.randn(n) for n in (0, 1, 7, LARGE - 1, LARGE, LARGE + 1, 5 * LARGE)],
        "tied": [weight, weight.view(3, LARGE), weight[LARGE:-3], weight.view(LARGE, 3).t()],
        "bfloat16": torch.randn(4 * LARGE).bfloat16(),
        "bytes": torch.arange(256, dtype=torch.uint8).repeat(LARGE // 16),
        "step": 4,
    }


def encoded(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    codec.encode_payload(state, file)
    return file.getvalue()


def load(data: bytes) -> dict[str, Any]:
    return codec.load_payload(io.BytesIO(data), len(data), bytes_digest(data))


def test_gives_what_torch_gives() -> None:
    data = encoded(rich_state())
    ours = load(data)
    assert_same_tensors(ours, torch.load(io.BytesIO(data), weights_only=True))
    first, *others = ours["tied"]
    pointers = {x.untyped_storage().data_ptr() for x in others}
    assert pointers == {first.untyped_storage().data_ptr()}


def test_the_result_can_be_changed_and_outlives_the_file() -> None:
    data = encoded(rich_state())
    ours = load(data)
    ours["sizes"][6].add_(1)
    again = load(data)
    torch.testing.assert_close(ours["sizes"][6], again["sizes"][6] + 1)


def test_a_payload_with_checksums_of_its_own_loads_too() -> None:
    file = io.BytesIO()
    state = rich_state()
    torch.save(state, file)
    assert_same_tensors(load(file.getvalue()), state)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: b"not a zip at all" * 9,
    ],
    ids=["shorter", "longer", "empty", "other"],
)
@pytest.mark.parametrize("how", [codec.load_payload, reading.verify_bytes])
def test_another_size_is_refused(damage: Callable[[bytes], bytes], how: Callable[..., Any]) -> None:
    data = encoded(rich_state())
    with pytest.raises(CorruptError, match=rf"bytes, expected {len(data)}"):
        how(io.BytesIO(damage(data)), len(data), bytes_digest(data))


@pytest.mark.parametrize("how", [codec.load_payload, reading.verify_bytes])
def test_a_flipped_bit_anywhere_is_refused_before_torch_looks(
    how: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encoded({"weight": torch.randn(2 * LARGE), "bias": torch.randn(9), "step": 4})
    monkeypatch.setattr(torch, "load", None)
    # Every byte that is not the tensor's: headers, the pickle, the directory; and some that are.
    start = data.index(b"weights") if b"weights" in data else 0
    structure = [*range(0, 1500), *range(len(data) - 2500, len(data))]
    for position in [*structure[::7], *range(start, len(data), 50_001)]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptError, match="payload is damaged: expected"):
            how(io.BytesIO(damaged), len(data), bytes_digest(data))


def test_bytes_that_are_no_zip_and_were_saved_so_are_refused() -> None:
    with pytest.raises(CorruptError, match="payload does not load"):
        load(b"these bytes have the digest that the manifest says" * 4000)


def test_a_file_that_ends_while_it_is_read_is_refused() -> None:
    class Shrinking(io.BytesIO):
        def readinto(self, buffer: Any) -> int:
            return 0 if self.tell() > 1000 else super().readinto(memoryview(buffer)[:600])

    data = encoded(rich_state())
    with pytest.raises(CorruptError, match="ends before its size"):
        codec.load_payload(Shrinking(data), len(data), bytes_digest(data))


MEASURE = """
import resource, sys
from speedtronic.checkpoint import codec, records
def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
path, size, digest = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(path, "rb") as file:
    before = peak_bytes()
    state = codec.load_payload(file, size, digest)
print((peak_bytes() - before) / size)
"""


def test_loading_needs_the_memory_of_the_file_and_hardly_more(tmp_path: Path) -> None:
    path = tmp_path / "payload.pt"
    state = {"step": 1, "weights": [torch.randn(2**20) for _ in range(48)]}
    with path.open("wb") as file:
        digest, size = codec.encode_payload(state, file)
    # The first load brings in code; its peak is behind when the second is measured.
    output = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), str(size), digest],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(output) <= 1.1
