"""Shared by all tests: helper modules on the path, private caches, real data where it is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
for folder in (TESTS, *(p for p in TESTS.iterdir() if p.is_dir())):
    sys.path.insert(0, str(folder))

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run small things; threads that spin for each other are slower

# Processes that tests start share the bytecode of the packages instead of compiling them one by one.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

NEIGHBOUR = TESTS.parent.parent / "shared" / "data"
if "SEARCH_DATA_DIR" not in os.environ and NEIGHBOUR.is_dir():
    os.environ["SEARCH_DATA_DIR"] = str(NEIGHBOUR)


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is fast, and what `pytest -n 2` deals out as one: tests that start a Ray (first), else a file (costly
    ones before shorter ones, so that no long one is left for the end)."""
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("ray", "costly")])
    for item in items:
        group = "ray" if item.get_closest_marker("ray") else item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
        if "real_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_data)
        if not any(item.get_closest_marker(name) for name in ("slow", "ray", "costly")):
            item.add_marker(pytest.mark.fast)


BEGAN = time.monotonic()


COSTLY = 60.0  # seconds; the tests of a fixture that took longer only read its results
MADE: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    began = time.monotonic()
    made = yield
    if time.monotonic() - began > COSTLY:
        MADE.add(fixturedef.argname)
    return made


def pytest_runtest_setup(item: pytest.Function) -> None:
    """SLOW_SECONDS of `.ci/run`: slow tests begin until then, later ones are skipped by name."""
    limit = float(os.environ.get("SLOW_SECONDS", "inf"))
    late = time.monotonic() - BEGAN > limit
    if item.get_closest_marker("slow") and late and not MADE.intersection(item.fixturenames):
        # by the test's own name without its case, so that `-rs` folds a file's cases into one line
        pytest.skip(f"no time left for {item.originalname}: slow tests begin within {limit:g} s")


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or fill the user's cache, nor know his defaults."""
    os.environ["SEARCH_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["SEARCH_CONFIG"] = str(tmp_path_factory.mktemp("config") / "none.toml")


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """In this process a crash is an exception, and what was written stays. fsync only guards against a power cut, and
    the studies that are played here would wait for 30,000 of them. Drivers in processes of their own do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_plugin_stays() -> Iterator[None]:
    """What a test's plugin files brought is forgotten after it."""
    yield
    if registry := sys.modules.get("trainables.contract.registry"):
        registry._methods.clear()
        registry._evaluations.clear()


@pytest.fixture
def real_data() -> Path:
    """The folder of real data; the test is skipped by name where there is none."""
    folder = os.environ.get("SEARCH_DATA_DIR")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real data: SEARCH_DATA_DIR is not set")
    return Path(folder)
