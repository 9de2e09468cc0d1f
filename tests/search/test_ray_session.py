"""A Ray cluster that rejects the driver, and nodes that cannot write the storage; no Ray is started."""

from __future__ import annotations

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


@pytest.mark.usefixtures("bucket")
def test_a_node_that_cannot_write_the_storage_is_named_before_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{number:056x}": name for number, name in enumerate(("first", "second"), 1)}
    answers = {"first": "", "second": "storage s3://bucket/search: NoCredentialsError: Unable to locate credentials"}

    class Probe:
        def options(self, scheduling_strategy: Any) -> Any:
            return SimpleNamespace(remote=lambda _: names[scheduling_strategy.node_id])

    nodes = [
        {"Alive": True, "Resources": {"CPU": 1}, "NodeID": node, "NodeManagerHostname": f"{name}-host"}
        for node, name in names.items()
    ]
    nodes.append({"Alive": True, "Resources": {}, "NodeID": "head", "NodeManagerHostname": "head"})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monkeypatch.setattr(ray, "remote", lambda **_: lambda _: Probe())
    monkeypatch.setattr(ray, "wait", lambda asked, **_: (asked, []))
    monkeypatch.setattr(ray, "get", answers.__getitem__)
    with pytest.raises(UserError, match=r"node second-host: storage s3://bucket/search: NoCredentialsError: [^\n]*$"):
        check_storage("s3://bucket/search")
    answers["second"] = ""
    check_storage("s3://bucket/search")
    check_storage("/a/disk")


@pytest.mark.usefixtures("bucket")
def test_the_probe_reports_a_missing_bucket() -> None:
    assert storage_problem("s3://none/search").startswith("storage s3://none/search: ")
