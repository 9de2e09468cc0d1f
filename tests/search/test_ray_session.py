"""A Ray cluster that rejects the driver, and nodes that cannot write the storage."""

from __future__ import annotations

import os
from typing import Any

import pytest
import ray
from ray.exceptions import AuthenticationError

from search.running.ray_session import check_storage, ray_session, storage_problem
from search.space import Resources
from search.store.layout import UserError

UNSET = "set RAY_AUTH_MODE=token"


@pytest.mark.parametrize(
    ("error", "mode", "expected"),
    [
        (ConnectionError("Failed to connect to Ray cluster"), "", rf"Failed to connect to Ray cluster \(.*{UNSET}\)"),
        (ConnectionError("Failed to connect"), "token", "Failed to connect .*token differs from .*auth_token"),
        (AuthenticationError("no token was found"), "token", "no token, or not the head's: copy .*auth_token"),
        (RuntimeError("Version mismatch: The cluster was started with\nmore"), "", "Version mismatch: The cluster"),
    ],
)
def test_a_cluster_that_rejects_the_driver_is_one_line(
    error: Exception, mode: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(UserError, match=expected) as raised, ray_session("auto", Resources(), None):
        pass
    assert str(raised.value).startswith("Ray cluster auto: ")
    assert "\n" not in str(raised.value)


def test_the_probe_leaves_nothing_in_the_storage(bucket: Any) -> None:
    assert storage_problem("s3://bucket/search") == ""
    assert "Contents" not in bucket.list_objects_v2(Bucket="bucket")


@pytest.mark.ray
@pytest.mark.usefixtures("bucket")
def test_a_node_without_credentials_is_named_before_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has the environment in which its Ray was started, not the driver's."""
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in keys:
        monkeypatch.delenv(name)
    with ray_session(None, Resources(), None):
        for name, key in keys.items():
            monkeypatch.setenv(name, key)
        with pytest.raises(UserError, match=r"^node \S+: storage s3://bucket/search: NoCredentialsError: [^\n]*$"):
            check_storage("s3://bucket/search")
        check_storage("/a/disk")


@pytest.mark.usefixtures("bucket")
def test_the_probe_reports_a_missing_bucket() -> None:
    assert storage_problem("s3://none/search").startswith("storage s3://none/search: ")
