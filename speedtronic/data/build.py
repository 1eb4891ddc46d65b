"""Build the run's data loader from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from speedtronic.data.loader import SampleLoader
from speedtronic.data.sample_order import SampleOrder
from speedtronic.data.stream import StreamLoader
from speedtronic.data.synthetic import SyntheticSource
from speedtronic.data.text import TextSource, find_files
from speedtronic.data.tokens import TokenSource, load_tokenizer
from speedtronic.data.types import BatchLoader, SampleSource
from speedtronic.data.user_data import MapSource, kind_of, make_own
from speedtronic.errors import ConfigError

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig


def build_loader(config: SpeedtronicConfig, *, pin_memory: bool) -> BatchLoader:
    """Build the run's loader, at position 0; no file is mapped and no worker started yet.

    Args:
        config: the `data` section, and `model.vocab_size`.
        pin_memory: used where `data.pin_memory` is None; streams and ready batches stay as they
            come.

    Raises:
        ConfigError: the factory or the tokenizer does not import, raises or gives something else,
            or the section does not go with what the factory gives.
        DataError: the data are not there, cannot be read or are too few.
    """
    data = config.data
    if data.dataset is None:
        return _sample_loader(config, build_source(config), pin_memory)
    key = "data.dataset"
    made = make_own(key, data, data.seed)
    if kind_of(key, made) == "map":
        return _sample_loader(config, MapSource(made, seed=data.seed), pin_memory)
    _check_stream(config, made)
    first = [made]
    return StreamLoader(
        lambda: first.pop() if first else make_own(key, data, data.seed),
        micro_batch_size=data.micro_batch_size,
        seed=data.seed,
    )


def build_source(config: SpeedtronicConfig) -> SampleSource:
    """Open the text that `data.text_path` names or, without one, make synthetic samples.

    Raises:
        ConfigError: the tokenizer does not import.
        DataError: the text is not there, cannot be read or is too short.
    """
    data = config.data
    if data.text_path is None:
        return SyntheticSource(
            num_tokens=data.num_tokens,
            block_size=data.block_size,
            vocab_size=config.model.vocab_size,
            seed=data.seed,
        )
    return build_text(config, data.text_path, key="data.text_path", num_tokens=data.num_tokens)


def build_text(
    config: SpeedtronicConfig,
    text_path: str | Sequence[str],
    *,
    key: str,
    num_tokens: int | None = None,
) -> TextSource | TokenSource:
    """Open text as bytes or, with `data.tokenizer`, as its tokens; `key` names it in messages."""
    files, block_size = find_files(text_path, key=key), config.data.block_size
    if config.data.tokenizer is None:
        return TextSource(files, block_size=block_size, num_tokens=num_tokens, key=key)
    return TokenSource(
        files,
        load_tokenizer(config.data.tokenizer),
        vocab_size=config.model.vocab_size,
        block_size=block_size,
        num_tokens=num_tokens,
        encoding_errors=config.data.encoding_errors,
        tokenizer=config.data.tokenizer,
        key=key,
    )


def _sample_loader(
    config: SpeedtronicConfig, source: SampleSource, pin_memory: bool
) -> SampleLoader:
    data = config.data
    order = SampleOrder(
        len(source),
        seed=data.seed,
        shuffle=data.shuffle,
        drop_last=data.drop_last,
        target_batch_size=data.target_batch_size,
    )
    return SampleLoader(
        source,
        order,
        micro_batch_size=data.micro_batch_size,
        num_workers=data.num_workers,
        prefetch_factor=data.prefetch_factor,
        pin_memory=pin_memory if data.pin_memory is None else data.pin_memory,
    )


def _check_stream(config: SpeedtronicConfig, made: Any) -> None:
    """Refuse settings that do not go with an iterable dataset or a loader of ready batches."""
    data, kind = config.data, type(made).__name__
    if data.num_workers:
        raise ConfigError(
            f"data.num_workers is {data.num_workers}; it must be 0 for a {kind}, which is read in "
            "the training process; for workers, return a torchdata StatefulDataLoader with its own"
        )
    if data.shuffle:
        raise ConfigError(
            f"data.shuffle is true; it must be false for a {kind}, whose order is its own"
        )
    batch_size = getattr(made, "batch_size", None) if kind_of("", made) == "batches" else None
    if batch_size not in (None, data.micro_batch_size):
        raise ConfigError(
            f"data.micro_batch_size is {data.micro_batch_size}; the {kind} of data.dataset has "
            f"batch_size {batch_size}, make them the same"
        )
