"""From a path or URL to the storage behind it; the only module that imports fsspec.

fsspec's own local transactions do neither same-directory temporaries nor fsyncs, so files of a
local directory do not go through it.
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
    """The absolute path behind a path or `file://` URL; nothing is created or looked at.

    Raises:
        ConfigError: the URL is not of a local file.
    """
    try:
        filesystem, path = url_to_fs(expand_path(url))
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{redact(url)!r} cannot be opened: {redact(str(error))}") from error
    if not isinstance(filesystem, LocalFileSystem):
        raise ConfigError(f"{redact(url)!r} is not local; expected a path or a file:// URL")
    return Path(path)


def is_local(url: str) -> bool:
    """Whether a path or URL is of a local file system; nothing is opened."""
    scheme, separator, _ = url.partition("://")
    return not separator or scheme in ("file", "local")


def open_storage(url: str) -> LocalStorage | ObjectStorage:
    """The storage behind a path or a `file://`, `memory://` or `s3://` URL; nothing is created.

    Raises:
        ConfigError: the URL is of none of these, or its client is not installed.
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
        # What another process has written since must be seen, so nothing is cached.
        filesystem, path = url_to_fs(url, use_listings_cache=False, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        raise ConfigError(
            f"{url!r} cannot be opened: {error}; pip install 'speedtronic-flows[s3]'"
        ) from error
    return _OBJECTS[scheme](filesystem, path, url)


# A retry of botocore draws from Python's random stream, which belongs to the run; s3fs, around it,
# tries again without.
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"config_kwargs": {"retries": {"max_attempts": 0}}}}
_OBJECTS: dict[str, type[ObjectStorage]] = {"memory": ObjectStorage, "s3": S3Storage}
