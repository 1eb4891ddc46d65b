"""From the configuration to a loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from speedtronic.data.loader import SampleLoader
from speedtronic.data.order import SampleOrder
from speedtronic.data.synthetic import SyntheticSource
from speedtronic.data.text import TextSource, find_files

if TYPE_CHECKING:
    from speedtronic.config import SpeedtronicConfig


def build_source(config: SpeedtronicConfig) -> TextSource | SyntheticSource:
    """The text that `data.text_path` names or, without one, synthetic samples.

    Raises:
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
    return TextSource(
        find_files(data.text_path), block_size=data.block_size, num_tokens=data.num_tokens
    )


def build_loader(config: SpeedtronicConfig, *, pin_memory: bool) -> SampleLoader:
    """The loader of the run, at position 0; no file is mapped and no worker started yet.

    Args:
        config: the `data` section, and `model.vocab_size`.
        pin_memory: used where `data.pin_memory` is None.

    Raises:
        DataError: as `build_source`, or `data.drop_last` leaves no sample.
    """
    data = config.data
    source = build_source(config)
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
