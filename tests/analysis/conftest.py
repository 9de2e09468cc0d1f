"""A store of two studies for the tests that only read: writing one takes seconds."""

from __future__ import annotations

import pytest
from small_store import SmallStore, fill


@pytest.fixture(scope="session")
def read_only_store(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    """small-1 (24 trials, confirmed) and small-2 (4 trials)."""
    made = SmallStore(tmp_path_factory.mktemp("store"))
    fill(made)
    fill(made, "small-2", trials=4, confirm=False, seed=1)
    return made


@pytest.fixture
def few_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the forests that tell an important parameter from chance, each of a quarter of the trees."""
    monkeypatch.setattr("analysis.statistics.importance.SHUFFLES", 19)
    monkeypatch.setattr("analysis.statistics.importance.BOOTSTRAP_TREES", 4)
