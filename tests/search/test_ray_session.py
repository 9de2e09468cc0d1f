"""A Ray cluster that rejects the driver or is not the connected one, and nodes that cannot write the storage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
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


def test_a_folder_without_the_drivers_file_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "ours").touch()
    assert storage_problem(str(tmp_path), "ours") == ""
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    (tmp_path / "ours").unlink()
    assert storage_problem(str(tmp_path), "ours").startswith(f"storage {tmp_path}: not the driver's folder; ")
    assert storage_problem(f"{tmp_path}/none").startswith(f"storage {tmp_path}/none: FileNotFoundError: ")


@pytest.mark.ray
def test_nodes_that_do_not_share_the_storage_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node stands for two; a node without the driver's file has a disk of its own."""
    expected = rf"^node \S+: storage {tmp_path}: not the driver's folder; give a --storage that all nodes reach$"
    with ray_session(None, Resources(), None), monkeypatch.context() as within:
        nodes = ray.nodes() * 2
        within.setattr(ray, "nodes", lambda: nodes)
        check_storage(str(tmp_path))
        assert list(tmp_path.iterdir()) == []
        within.setattr(Path, "touch", lambda *_: None)
        with pytest.raises(UserError, match=expected):
            check_storage(str(tmp_path))


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("auto", True), ("127.0.0.1:6379", True), ("localhost:6379", True), ("ray://127.0.0.1:10001", True),
        ("127.0.0.1:6380", False), ("203.0.113.5:6379", False), ("ray://203.0.113.5:10001", False), ("local", False),
    ],
)  # fmt: skip
def test_an_address_of_another_than_the_connected_ray_is_rejected(
    address: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:6379"))
    expected = rf"^Ray cluster {address}: this process is connected to the Ray at 127.0.0.1:6379; call `ray.shutdown"
    rejected = contextlib.nullcontext() if same else pytest.raises(UserError, match=expected)
    with rejected, ray_session(address, Resources(), None):
        pass
