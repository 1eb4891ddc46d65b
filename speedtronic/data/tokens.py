"""Encode text files by the user's tokenizer, once, and keep the tokens in memory."""

from __future__ import annotations

import logging
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from speedtronic.data.fingerprint import describe_file, fingerprint
from speedtronic.data.types import Batch, Sample, as_sample, stack
from speedtronic.errors import ConfigError, DataError
from speedtronic.redaction import scrub
from speedtronic.user_code import import_object, line_raised

logger = logging.getLogger(__name__)

Encode = Callable[[str], Any]


def load_tokenizer(name: str) -> Encode:
    """Import what encodes text as ids: the `encode` of the object `name`, or the object itself.

    Raises:
        ConfigError: it does not import, or can do neither.
    """
    tokenizer = import_object("data.tokenizer", name)
    encode = getattr(tokenizer, "encode", tokenizer)
    if isinstance(tokenizer, type) or not callable(encode):
        what = "a class" if isinstance(tokenizer, type) else f"a {type(tokenizer).__name__}"
        raise ConfigError(
            f"data.tokenizer is {name!r}: {what}, expected an object with encode(text) or a "
            "function of text"
        )
    return encode  # type: ignore[no-any-return]


class TokenSource:
    """Cuts the tokens of some files, one after another, into samples of `block_size` tokens.

    Sample i is made of the tokens [i T, i T + T + 1) of the whole; it may straddle files. All are
    in memory, 4 bytes a token (8 for a vocabulary above 2^32), shared with forked workers.

    Args:
        files: UTF-8 text, in the order in which they follow one another.
        encode: gives the ids of one file's text: a list, array or tensor, or an object with `ids`.
        vocab_size: of the model; ids are below it.
        block_size: T, tokens in a sample.
        num_tokens: use no more than the first `num_tokens` tokens.
        encoding_errors: `strict`, `replace` or `skip`, for files that are not UTF-8. Such files in
            Python's standard library, inputs of its tests, are left out by `strict` too.
        tokenizer: the name that the configuration gives `encode`, for messages.
        key: of the configuration, for messages.

    Raises:
        DataError: a file cannot be read or is not UTF-8, `encode` gives no ids or too large ones,
            or there is less than one sample.
    """

    def __init__(
        self,
        files: Sequence[Path],
        encode: Encode,
        *,
        vocab_size: int,
        block_size: int,
        num_tokens: int | None = None,
        encoding_errors: str = "strict",
        tokenizer: str | None = None,
        key: str = "data.text_path",
    ) -> None:
        self._files = list(files)
        self._num_tokens = num_tokens
        self.block_size = block_size
        dtype = np.uint32 if vocab_size <= 2**32 else np.int64
        said = "data.tokenizer" if tokenizer is None else f"data.tokenizer {tokenizer!r}"
        pieces, num_found = [np.empty(0, dtype)], 0
        for file in files:
            if num_tokens is not None and num_found >= num_tokens:
                break
            text = _read(file, encoding_errors)
            if text is None:
                logger.warning("%s: %s is left out: it is not UTF-8", key, file)
                continue
            pieces.append(_encode(file, text, encode, vocab_size, said).astype(dtype))
            num_found += len(pieces[-1])
        self.tokens = np.concatenate(pieces)[:num_tokens]
        if not num_found:
            others = f" and {len(files) - 1} more files" if len(files) > 1 else ""
            raise DataError(f"{key}: {said} gave no ids for {files[0]}{others}")
        if len(self) < 1:
            raise DataError(
                f"{key}: {len(self.tokens)} tokens of text are less than the {block_size + 1} that "
                f"one sample needs (data.block_size {block_size} + 1); give more text or lower it"
            )

    def __len__(self) -> int:
        return max(len(self.tokens) - 1, 0) // self.block_size

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = index * self.block_size
        return as_sample(self.tokens[start : start + self.block_size + 1])

    def batch(self, indices: Sequence[int], epochs: Sequence[int]) -> Batch:
        return stack([self[index] for index in indices])

    def fingerprint(self) -> str:
        """Return a fingerprint of file names, sizes, contents, the cap and all tokens, so
        that another tokenizer is noticed too."""
        return fingerprint(
            kind="tokens",
            files=[describe_file(file) for file in self._files],
            num_tokens=self._num_tokens,
            tokens=xxhash.xxh3_128_hexdigest(self.tokens.data),
        )


def _read(path: Path, encoding_errors: str) -> str | None:
    """Read the text of a file; None if it is not UTF-8 and is to be left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"text cannot be read: {path}: {error}") from error
    try:
        return content.decode(errors="replace" if encoding_errors == "replace" else "strict")
    except UnicodeDecodeError as error:
        if encoding_errors == "skip" or path.is_relative_to(sysconfig.get_path("stdlib")):
            return None
        raise DataError(
            f"text is not UTF-8: {path}: byte {error.start}: {error.reason}; "
            "data.encoding_errors: replace or skip goes on without it"
        ) from error


def _encode(path: Path, text: str, encode: Encode, vocab_size: int, said: str) -> np.ndarray:
    """Return the ids of one file, any integer type (N,), all in [0, vocab_size)."""
    try:
        ids = encode(text)
    except Exception as error:
        raise DataError(
            scrub(
                f"{said} failed on {path}: {type(error).__name__}: {error} "
                f"(at {line_raised(error, encode)})"
            )
        ) from error
    ids = getattr(ids, "ids", ids)
    try:
        array = ids.numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty(())
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise DataError(
            f"{said} gave a {type(ids).__name__} for {path}, expected a flat list, array "
            "or tensor of whole numbers"
        )
    if array.size and not (array.min() >= 0 and array.max() < vocab_size):
        wrong = array.min() if array.min() < 0 else array.max()
        raise DataError(
            f"{said} gave the id {wrong} for {path}; model.vocab_size is {vocab_size}, "
            "raise it to the tokenizer's"
        )
    return array
