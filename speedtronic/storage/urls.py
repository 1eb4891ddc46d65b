"""Opens the storage of a path or URL; the only module that imports fsspec.

Local directories are accessed without fsspec, whose local transactions use neither temporaries in
the same directory nor fsync.
"""

from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from speedtronic.config.references import expand_path
from speedtronic.errors import ConfigError
from speedtronic.redaction import redact
from speedtronic.storage.local import LocalStorage
from speedtronic.storage.objects import ObjectStorage
from speedtronic.storage.s3 import S3Storage


def local_path(url: str) -> Path:
    """Return the absolute path of a path or `file://` URL, without accessing it.

    Raises:
        ConfigError: the URL is not that of a local file.
    """
    try:
        filesystem, path = url_to_fs(expand_path(url))
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{redact(url)!r} cannot be opened: {redact(str(error))}") from error
    if not isinstance(filesystem, LocalFileSystem):
        raise ConfigError(f"{redact(url)!r} is not local; expected a path or a file:// URL")
    return Path(path)


def is_local(url: str) -> bool:
    """Whether a path or URL is local; nothing is opened."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme in ("file", "local")


def open_storage(url: str) -> LocalStorage | ObjectStorage:
    """Return the storage of a path or a `file://`, `memory://` or `s3://` URL; creates nothing.

    Raises:
        ConfigError: the URL has another scheme, or its client is not installed.
    """
    url = expand_path(url)
    if is_local(url):
        return LocalStorage(local_path(url))
    scheme, _, rest = url.partition("://")
    if scheme not in _OBJECTS:
        raise ConfigError(
            f"{redact(url)!r} cannot hold checkpoints; expected a path or a file://, s3:// or "
            "memory:// URL"
        )
    if "@" in rest.partition("/")[0]:
        raise ConfigError(
            f"{redact(url)!r} holds credentials; leave them to the environment "
            "(AWS_ACCESS_KEY_ID, ...) or to a profile"
        )
    try:
        # Writes of other processes must be visible, so nothing is cached.
        filesystem, path = url_to_fs(url, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        raise ConfigError(
            f"{url!r} cannot be opened: {error}; pip install 'speedtronic-flows[s3]'"
        ) from error
    return _OBJECTS[scheme](filesystem, path, url)


# A retry of botocore draws from Python's global random stream, which is part of the training state.
# s3fs retries without drawing, so botocore's retries are switched off.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"config_kwargs": {"retries": {"max_attempts": 0}}}}
_OBJECTS: dict[str, type[ObjectStorage]] = {"memory": ObjectStorage, "s3": S3Storage}
