"""Find what is wrong with a checkpoint that loads. Reads no file."""

from collections.abc import Iterator

from speedtronic.checkpoint import Manifest
from speedtronic.worker.messages import Facts


def disagreements(manifest: Manifest, facts: Facts) -> list[str]:
    """List each contradiction between its values, and the tensors that hold NaN or infinity."""
    return [*facts.disagreements, *_tensors(manifest, facts)]


def _tensors(manifest: Manifest, facts: Facts) -> Iterator[str]:
    if facts.state_digest != manifest.state_digest:
        yield f"{facts.state_digest} was loaded, the manifest has {manifest.state_digest}"
    if facts.not_finite:
        yield f"NaN or infinity in {', '.join(facts.not_finite)}"
