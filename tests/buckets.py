"""A server that speaks S3, started by the tests that need one."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.waiting import wait_until

BUCKET = "bucket"


@contextmanager
def s3_server() -> Iterator[str]:
    """Its address; the environment, also of child processes, leads every client there."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()  # those know the address of an earlier server
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A process of its own: it draws from Python's random stream, which is part of a run's state.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        assert wait_until(lambda: _answers(port), timeout_s=60)
        with patch.dict(os.environ, environment):
            client().create_bucket(Bucket=BUCKET)
            yield environment["AWS_ENDPOINT_URL"]
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def client() -> Any:
    """Another client than the one under test."""
    import boto3

    return boto3.client("s3")


def keys(prefix: str) -> list[str]:
    """The names of all objects that begin with `prefix`, without it."""
    found = client().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return sorted(entry["Key"].removeprefix(prefix) for entry in found)


def uploads() -> list[str]:
    """The names of objects that are being uploaded in parts."""
    found = client().list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return [upload["Key"] for upload in found]
