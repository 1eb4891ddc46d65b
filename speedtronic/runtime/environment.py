"""Describes what numbers depend on besides the configuration: software, threads, hardware."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def describe_environment(device: torch.device, *, precision: str, compiled: bool) -> dict[str, Any]:
    """Return the environment as plain values, which every manifest records.

    Args:
        device: that the run trains on.
        precision: the mode in use, which `auto` leaves to the device.
        compiled: whether the model runs through torch.compile.
    """
    return {
        "torch": str(torch.__version__),  # which is of a class of its own
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cpu": _cpu_model(),
        "device": _device_name(device),
        "precision": precision,
        "compile": compiled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def environment_changes(stored: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return one line for each key that both have and whose values differ."""
    return [
        f"{key} was {stored[key]}, is {current[key]}"
        for key in current
        if key in stored and stored[key] != current[key]
    ]


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
