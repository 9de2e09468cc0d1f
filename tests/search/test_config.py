"""A user's defaults: which setting wins, and the errors for a wrong file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from analysis.commands.main import main as analysis
from search.cli.main import main as search
from trainables.data.tokens import DiskCache


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    for name in ("SEARCH_STORAGE", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # set, so that what a command sets is taken back
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setenv("SEARCH_CONFIG", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(search, arguments, env=environment)


def test_without_a_file_all_is_as_it_was(file: Path) -> None:
    said = call("config").stdout.splitlines()
    assert said[0] == f"{file} (not there)"
    assert said[1].split() == ["storage", "runs", "(default)"]
    assert said[2].endswith(f"{file.parent}/runs/mlflow.db  (in the storage)")
    assert said[3].split() == ["cluster", "none", "(default)"]


def test_option_wins_over_environment_over_file(file: Path) -> None:
    file.write_text('storage = "from-file"\ntracking_uri = "sqlite:///of-file.db"\ncluster = "mine.yaml"\n')
    said = call("config").stdout
    assert "from-file  (the file)" in said
    assert "sqlite:///of-file.db  (the file)" in said
    assert "mine.yaml  (the file)" in said
    assert "other  (SEARCH_STORAGE)" in call("config", SEARCH_STORAGE="other").stdout
    # The error for a missing study names the storage.
    named = "from-file", "other", "third"
    assert named[0] in call("status", "--cluster", "").stderr
    assert named[1] in call("status", "--cluster", "", SEARCH_STORAGE="other").stderr
    assert named[2] in call("status", "--cluster", "", "--storage", "third", SEARCH_STORAGE="other").stderr


def test_the_default_cluster_is_used_without_an_option(file: Path) -> None:
    file.write_text('cluster = "nowhere.yaml"\n')
    for command in (["status"], ["follow"], ["stop"]):
        done = call(*command)
        assert (done.exit_code, "nowhere.yaml" in done.stderr) == (2, True), done.output


def test_the_analysis_reads_where_the_search_wrote(file: Path, tmp_path: Path) -> None:
    file.write_text(f'tracking_uri = "sqlite:///{tmp_path}/of-file.db"\n')
    done = CliRunner().invoke(analysis, ["best"])
    assert done.exit_code == 2
    assert "of-file.db" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('storag = "x"', "storag: unknown; expected storage, tracking_uri, cluster"),
        ("storage = 3", "storage: expected a text, got 3"),
        ("storage = ", "Invalid value"),
    ],
)
def test_a_wrong_file_is_one_line(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    for group, arguments in ((search, ["list"]), (search, ["config"]), (analysis, ["best"])):
        done = CliRunner().invoke(group, arguments)
        assert done.exit_code == 2
        assert str(file) in done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("file")
def test_cache_is_shown_and_cleared(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    DiskCache(cache).cached("tokens", [], lambda: np.zeros(10**6))
    assert f"{cache}  (0.01 GB of at most 20)" in call("config", SEARCH_CACHE_DIR=str(cache)).stdout
    assert call("config", "--clear-cache", SEARCH_CACHE_DIR=str(cache)).stdout.endswith("of the cache are deleted\n")
    assert not list(cache.iterdir())
