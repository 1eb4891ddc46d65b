import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speedtronic import SpeedtronicConfig
from speedtronic.data.build import build_source
from speedtronic.data.tokens import TokenSource, load_tokenizer
from speedtronic.errors import ConfigError, DataError
from tests.own_parts import code_points, words


class Encoding:
    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


def write(tmp_path: Path, *texts: str) -> list[Path]:
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text, encoding="utf-8", newline="")
    return files


def make_source(files: list[Path], encode: Any = code_points, **changes: Any) -> TokenSource:
    return TokenSource(files, encode, **{"vocab_size": 300, "block_size": 3, **changes})


def test_samples_are_the_tokens_of_all_files(tmp_path: Path) -> None:
    source = make_source(write(tmp_path, "abcd", "", "é\r\ngh"))
    assert source.tokens.tolist() == [97, 98, 99, 100, 233, 13, 10, 103, 104]
    assert source.tokens.dtype == np.uint32
    assert len(source) == 2
    batch = source.batch([1, 0], [0, 0])
    assert batch["input_ids"].tolist() == [[100, 233, 13], [97, 98, 99]]
    assert batch["labels"].tolist() == [[233, 13, 10], [98, 99, 100]]
    assert batch["labels"].dtype == torch.int64
    with pytest.raises(IndexError):
        source[2]
    assert len(pickle.loads(pickle.dumps(make_source(source._files, words.encode, block_size=1))))


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 3, 4],
        (1, 2, 3, 4),
        np.array([1, 2, 3, 4], dtype=np.int16),
        torch.tensor([1, 2, 3, 4]),
        Encoding([1, 2, 3, 4]),
    ],
)
def test_ids_in_any_form(tmp_path: Path, ids: Any) -> None:
    source = make_source(write(tmp_path, "x"), lambda text: ids)
    assert source.tokens.tolist() == [1, 2, 3, 4]


def test_num_tokens_caps_and_reads_no_further(tmp_path: Path) -> None:
    files = write(tmp_path, "abcd", "abcd")
    source = make_source([*files, tmp_path / "absent"], num_tokens=6)
    assert source.tokens.tolist() == [97, 98, 99, 100, 97, 98]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 300, 2], r"data\.tokenizer gave the id 300 for .*0\.txt; model\.vocab_size is 300"),
        ([1, -1, 2], r"gave the id -1 for"),
        ([1.5], r"gave a list for .*0\.txt, expected a flat list"),
        ([[1, 2]], "gave a list"),
        ([[1], [2, 3]], "gave a list"),
        ([], r"data\.text_path: data\.tokenizer gave no ids for .*0\.txt"),
        (torch.zeros(0), r"gave no ids for .*0\.txt"),
        ([1], "1 tokens of text are less than"),
        ("abc", "gave a str"),
        ("", "gave a str"),
        (["1"], "gave a list"),
        ([2**70], "gave a list"),
        ([True], "gave a list"),
        (None, "gave a NoneType"),
        ({"input_ids": [1]}, "gave a dict"),
    ],
)
def test_bad_ids_are_refused_in_one_line(tmp_path: Path, ids: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        make_source(write(tmp_path, "x"), lambda text: ids)
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes("ab é".encode() + b"\xff")
    with pytest.raises(DataError, match=r"text is not UTF-8: .*bad: byte 5: invalid start byte"):
        make_source([tmp_path / "bad"])


def test_what_fails_is_named(tmp_path: Path) -> None:
    def failing(text: str) -> list[int]:
        raise KeyError("ab")

    with pytest.raises(DataError, match=r"data\.tokenizer failed on .*0\.txt: KeyError: 'ab'"):
        make_source(write(tmp_path, "x"), failing)
    with pytest.raises(DataError, match=r"text cannot be read: .*absent"):
        make_source([tmp_path / "absent"])
    with pytest.raises(DataError, match=r"data\.text_path: 2 tokens of text are less than the 4"):
        make_source(write(tmp_path, "ab"))


def test_fingerprint_is_of_files_cap_and_tokens(tmp_path: Path) -> None:
    files = write(tmp_path, "ab cd ef gh")
    prints = {
        make_source(files).fingerprint(),
        make_source(files, num_tokens=6).fingerprint(),
        make_source(files, words.encode).fingerprint(),
    }
    assert len(prints) == 3
    assert make_source(files).fingerprint() in prints
    write(tmp_path, "ab cd ef gi")
    assert make_source(files, words.encode).fingerprint() not in prints  # the same tokens


def test_tokenizers_by_name() -> None:
    assert load_tokenizer("tests.own_parts:words")("ab c") == [2, 1]
    assert load_tokenizer("tests.own_parts:code_points")("ab").tolist() == [97, 98]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.own_parts:Words", r"data\.tokenizer is 'tests\.own_parts:Words': a class, expec"),
        ("tests.own_parts:NUM_TOKENS", "a int, expected an object with encode"),
        ("tests.own_parts:absent", "data.tokenizer is .*absent"),
    ],
)
def test_what_is_no_tokenizer_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(name)


def test_a_small_vocabulary_will_do_in_a_configuration(tmp_path: Path) -> None:
    write(tmp_path, "a bc def g hi jk l m nop")
    config = SpeedtronicConfig.from_dict(
        {
            "model": {"vocab_size": 4},
            "data": {
                "text_path": f"{tmp_path}/*.txt",
                "tokenizer": "tests.own_parts:words",
                "block_size": 4,
                "num_tokens": 5,
            },
        }
    )
    source = build_source(config)
    assert isinstance(source, TokenSource)
    assert source[0]["labels"].tolist() == [2, 3, 1, 2]


@pytest.mark.parametrize(
    ("errors", "expected"), [("replace", [97, 65533, 98, 100, 100, 100]), ("skip", [100, 100, 100])]
)
def test_a_file_that_is_not_utf_8(
    tmp_path: Path, errors: str, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "0").write_bytes(b"a\xffb")
    (tmp_path / "1").write_text("ddd")
    files = [tmp_path / "0", tmp_path / "1"]
    options = {"vocab_size": 70000, "block_size": 2}
    with pytest.raises(DataError, match=r"/0: byte 1: .*; data\.encoding_errors: replace or skip"):
        make_source(files, **options)
    source = make_source(files, encoding_errors=errors, **options)
    assert source.tokens.tolist() == expected
    assert (f"{files[0]} is left out" in caplog.text) == (errors == "skip")
    # What becomes of it is part of the data; where there is no such file it is not.
    another = {"replace": "skip", "skip": "replace"}[errors]
    other = make_source(files, encoding_errors=another, **options)
    assert source.fingerprint() != other.fingerprint()
    clean = [make_source(files[1:], encoding_errors=e, **options) for e in (errors, "strict")]
    assert clean[0].fingerprint() == clean[1].fingerprint()


def test_the_standard_library_has_files_of_other_encodings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "koi8.py").write_bytes(b"# \xf0\xf1")
    (tmp_path / "plain.py").write_text("words " * 9)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    values = {"text_path": "{stdlib}/*.py", "tokenizer": "tests.own_parts:words", "block_size": 2}
    source = build_source(SpeedtronicConfig.from_dict({"data": values}))
    assert len(source) == 4
