"""The reference transformer, and the registry through which a configuration names a model."""

from speedtronic.model.registry import build_model, register_model
from speedtronic.model.transformer import ReferenceTransformer

__all__ = ["ReferenceTransformer", "build_model", "register_model"]
