"""The weights of a checkpoint for other programs, as safetensors."""

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from speedtronic.checkpoint import Checkpoint
from speedtronic.errors import OutputDirError, StorageError, UsageError
from speedtronic.storage.base import publish
from speedtronic.storage.urls import open_storage

logger = logging.getLogger(__name__)

WITHOUT_FORM = {torch.complex128, torch.complex32, torch.bits8}


def export_weights(checkpoint: Checkpoint, target: str) -> int:
    """Write the model of a checkpoint to a `.safetensors` file, replacing it if it is there.

    Tensors that are tied stand in it under each of their names, so that a plain load finds all of
    them. Its metadata are the step, the run's id and the state's digest. A crash leaves the former
    file or the new one.

    Returns:
        The number of tensors.

    Raises:
        UsageError: `target` is no such file's name, or cannot be written.
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
    weights = _apart(_exportables(checkpoint.state["model"]))
    content = save(weights, metadata)
    try:
        publish(open_storage(str(path.parent)), path.name, lambda file: file.write(content))
    except StorageError as error:
        raise OutputDirError(f"--to {target}: {error}") from error
    return len(weights)


def exportable(tensor: torch.Tensor) -> bool:
    """Whether safetensors has a form for a tensor."""
    plain = tensor.layout == torch.strided and not tensor.is_quantized
    return plain and tensor.dtype not in WITHOUT_FORM


def _exportables(weights: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors that safetensors has a form for; the others are named in a warning. What is no
    tensor (of get_extra_state) is left out."""
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


def _apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor with memory of its own where it shares it with another."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in weights.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        apart[name] = tensor.clone() if shared else tensor.contiguous()
    return apart
