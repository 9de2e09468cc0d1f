"""`pytest -n 2` deals out what belongs together as one: two Rays at a time would find each other."""

from __future__ import annotations

import pytest


@pytest.mark.ray
def test_an_item_of_a_group_is_dealt_by_it(request: pytest.FixtureRequest, worker_id: str) -> None:
    """Fails where pytest-xdist and pytest do not fit: xdist 3.8 writes `_nodeid`, which pytest 9.2 dropped."""
    assert worker_id == "master" or request.node.nodeid.endswith("@ray")
