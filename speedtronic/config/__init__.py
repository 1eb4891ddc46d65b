"""Reads, validates and overrides configurations, and compares them with those of checkpoints."""

from speedtronic.config.config import SpeedtronicConfig

__all__ = ["SpeedtronicConfig"]
