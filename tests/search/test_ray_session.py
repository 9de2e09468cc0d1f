"""Connecting to a Ray cluster that cannot be reached, or whose token is another one; no Ray is started."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray.exceptions import AuthenticationError

from search.running.ray_session import ray_session
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
