"""Exports the weights of a checkpoint as safetensors, for other programs."""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from speedtronic.checkpoint import Checkpoint
from speedtronic.errors import OutputDirError, StorageError, UsageError
from speedtronic.storage.base import publish_bytes
from speedtronic.storage.urls import open_storage

logger = logging.getLogger(__name__)

UNSUPPORTED_DTYPES = {torch.complex128, torch.complex32, torch.bits8}


def export_weights(checkpoint: Checkpoint, target: str) -> int:
    """Write the model of a checkpoint to a `.safetensors` file; an existing one is replaced.

    Tied tensors are written under each of their names, so that an ordinary load finds them all. The
    metadata hold step, run id and state digest. A crash leaves either the old or the new file.

    Returns:
        The number of tensors.

    Raises:
        UsageError: `target` does not end with .safetensors, or cannot be written.
    """
    path = Path(target)
    if path.suffix != ".safetensors":
        raise UsageError(f"--to {target}: expected a name that ends with .safetensors")
    if not path.parent.is_dir():
        raise UsageError(f"--to {target}: {path.parent} is not a directory")
    manifest = checkpoint.manifest
    metadata = {
        "format": "pt",
        "step": str(manifest.step),
        "run_id": manifest.run_id,
        "state_digest": manifest.state_digest,
    }
    weights = _unshared(_supported(checkpoint.state["model"]))
    content = save(weights, metadata)
    try:
        publish_bytes(open_storage(str(path.parent)), path.name, content)
    except StorageError as error:
        raise OutputDirError(f"--to {target}: {error}") from error
    return len(weights)


def exportable(tensor: torch.Tensor) -> bool:
    """Whether safetensors can hold a tensor."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized
    return plain and tensor.dtype not in UNSUPPORTED_DTYPES


def _supported(weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that safetensors can hold, and warn of the others.

    Values that are no tensors (of get_extra_state) are left out.
    """
    kept = {}
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if not exportable(tensor):
            kind = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            logger.warning("left out: %s (%s), which safetensors cannot hold", name, kind)
        else:
            kept[name] = tensor.resolve_conj().resolve_neg()
    return kept


def _unshared(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy each tensor that shares memory with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    unshared = {}
    for name, tensor in weights.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        unshared[name] = tensor.clone() if shared else tensor.contiguous()
    return unshared
