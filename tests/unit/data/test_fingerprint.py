import time
from pathlib import Path

import pytest

from speedtronic.data import TextSource
from speedtronic.data import fingerprint as module
from speedtronic.data.fingerprint import describe_file, digest, fingerprint, spread
from speedtronic.errors import DataError


def of_text(folder: Path, num_tokens: int | None = None) -> str:
    source = TextSource(sorted(folder.iterdir()), block_size=4, num_tokens=num_tokens)
    return source.fingerprint()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in "abc":
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def test_it_is_pinned_for_ever(corpus: Path) -> None:
    assert of_text(corpus) == "xxh3_128:bf823fa40bd49c17607e572c341e18c6"


def test_a_moved_corpus_is_the_same(corpus: Path, tmp_path: Path) -> None:
    before = of_text(corpus)
    assert of_text(corpus.rename(tmp_path / "elsewhere")) == before


@pytest.mark.parametrize("change", ["byte", "shrink", "grow", "rename", "remove", "add"])
def test_any_change_counts(corpus: Path, change: str) -> None:
    before, file = of_text(corpus), corpus / "b"
    text = file.read_bytes()
    if change == "byte":
        file.write_bytes(b"x" + text[1:])
    elif change == "shrink":
        file.write_bytes(text[:-1])
    elif change == "grow":
        file.write_bytes(text + b"b")
    elif change == "rename":
        file.rename(corpus / "bb")
    elif change == "remove":
        file.unlink()
    elif change == "add":
        (corpus / "d").write_bytes(b"d")
    assert of_text(corpus) != before


def test_how_much_of_it_is_used_is_another_key(corpus: Path) -> None:
    assert of_text(corpus, 50) == of_text(corpus)


def test_text_moved_from_one_file_to_the_next_counts(corpus: Path) -> None:
    before = of_text(corpus)
    (corpus / "a").write_bytes(b"a" * 100 + b"b")
    (corpus / "b").write_bytes(b"b" * 99)
    assert of_text(corpus) != before


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 25, 39, 40])
def test_a_file_up_to_the_limit_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "NUM_BLOCKS", 4)
    text = bytes(size)
    seen = set()
    for changed in range(-1, size):
        (tmp_path / "f").write_bytes(
            text if changed < 0 else text[:changed] + b"x" + text[changed + 1 :]
        )
        seen.add(str(describe_file(tmp_path / "f")))
    assert len(seen) == size + 1


def test_of_a_larger_file_head_tail_and_size_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 10)
    monkeypatch.setattr(module, "NUM_BLOCKS", 4)
    text, seen = bytes(1000), set()
    for changed in (text, b"x" + text[1:], text[:-1] + b"x", text + b"\0", text[:-1]):
        (tmp_path / "f").write_bytes(changed)
        seen.add(str(describe_file(tmp_path / "f")))
    assert len(seen) == 5


def test_thousands_of_small_files_are_quick(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / f"{number:05}").write_bytes(b"%d" % number * 100)
    started = time.perf_counter()
    of_text(tmp_path)
    assert time.perf_counter() - started < 3.0


def test_a_file_that_vanished_is_named(corpus: Path) -> None:
    source = TextSource(sorted(corpus.iterdir()), block_size=4)
    (corpus / "b").unlink()
    with pytest.raises(DataError, match=r"text cannot be read: .*b"):
        source.fingerprint()


def test_spread() -> None:
    assert spread(1) == [0]
    assert spread(5) == [0, 1, 2, 3, 4]
    assert spread(8) == list(range(8))
    assert len(spread(10**9)) == 8
    assert spread(10**9)[-1] == 10**9 - 1


def test_structure_and_type_count_in_a_digest() -> None:
    import numpy as np
    import torch

    values = [
        1, 1.0, True, None, "1", b"1", [1], [[1]], {"a": 1}, {"b": 1}, [1, 1], (), "",
        torch.tensor(1), torch.tensor([1]), torch.tensor(1.0), torch.zeros(2), torch.zeros(1, 2),
        np.array(1), np.float32(1), np.float64(1), torch.ones(2, dtype=torch.bfloat16), object(),
    ]  # fmt: skip
    assert len({digest(value) for value in values}) == len(values)
    assert digest({"a": [torch.ones(2)]}) == digest({"a": (torch.ones(2),)})
    assert digest(object()) == digest(object())


def test_facts_have_one_form() -> None:
    assert fingerprint(a=1, b=[2]) == fingerprint(b=[2], a=1) != fingerprint(a=1, b=[3])
