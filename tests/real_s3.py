"""An S3 server for tests, which speaks the protocol over HTTP: moto's, in a thread, on a free port of the loopback.

Objects outlive `stop`, as objects of a real server outlive its loss, and `start` is at the same address. The fixture
`s3` of tests/conftest.py is a server with a bucket.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "cep",
    "AWS_SECRET_ACCESS_KEY": "cep",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}


class S3Server:
    """A server with one bucket, which no other test uses."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        self.bucket = f"cep-{uuid.uuid4().hex[:12]}"

    def url(self, folder: str) -> str:
        """Return the URL of a folder of the bucket, as a target takes it."""
        return f"s3://{self.bucket}/{folder}"

    def make_bucket(self) -> None:
        boto3.client("s3", endpoint_url=self.address).create_bucket(Bucket=self.bucket)

    def objects(self, folder: str) -> dict[str, int]:
        """Return name after the folder → bytes."""
        listing = boto3.client("s3", endpoint_url=self.address).list_objects_v2(Bucket=self.bucket, Prefix=f"{folder}/")
        return {entry["Key"].removeprefix(f"{folder}/"): entry["Size"] for entry in listing.get("Contents", ())}

    def replace(self, key: str, change: bytes | None) -> None:
        """Replace the bytes of an object; None removes it."""
        client = boto3.client("s3", endpoint_url=self.address)
        if change is None:
            client.delete_object(Bucket=self.bucket, Key=key)
        else:
            client.put_object(Bucket=self.bucket, Key=key, Body=change)

    def stop(self) -> None:
        """Stop answering."""
        self._server.stop()

    def start(self) -> None:
        """Answer again."""
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()


@contextmanager
def open_s3() -> Iterator[S3Server]:
    """Yield a server that clients of this process and its children find by themselves."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = S3Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**_ENVIRONMENT, "AWS_ENDPOINT_URL": server.address}.items():
            patch.setenv(name, value)
        server.make_bucket()
        S3FileSystem.clear_instance_cache()
        try:
            yield server
        finally:
            S3FileSystem.clear_instance_cache()
            server.stop()
