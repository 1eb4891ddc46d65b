"""Speedtronic: train PyTorch models in chunks that survive anything and end in the same bits."""

from speedtronic.config import SpeedtronicConfig

__all__ = ["SpeedtronicConfig"]
