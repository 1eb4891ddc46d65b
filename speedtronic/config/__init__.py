"""The configuration: its keys and rules, reading and overriding it, its schema, and its drift."""

from speedtronic.config.config import SpeedtronicConfig

__all__ = ["SpeedtronicConfig"]
