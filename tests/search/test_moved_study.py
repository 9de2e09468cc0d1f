"""A project that is moved, and copied by another user: its study is analysed, confirmed and exported there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from search.schema import moved_artifacts
from trainables.contract.declaration import TRANSFORMER
from trainables.data.sets import load_pairs
from trainables.encoders.load import load_source

OTHER_UID = 65534
READS = "+dac_read_search"  # an interpreter below /root can be run, others' files still not written
SPACE = """\
name: moved
method: simcse
encoder: enc
preset: none
data: {train: data/train.txt, dev: [data/pairs.tsv], language: en}
metric: {name: pairs_dev}
params: {learning_rate: {choice: [1.0e-4, 1.0e-3]}, batch_size: 16}
search: {sampler: grid, baseline: none, seed: 0}
train: {max_examples: 64, eval_examples: 64}
"""
Command = Callable[..., str]


def of_uid(uid: int, home: Path) -> Command:
    """Runs a command of the platform as a user, in a folder; its output."""
    drop = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    drop += [f"--inh-caps={READS}", f"--ambient-caps={READS}"]
    env = os.environ | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"SEARCH_CACHE_DIR": str(home / f"cache-{uid}"), "XDG_CACHE_HOME": str(home / f"xdg-{uid}")}

    def run(where: Path, name: str, *arguments: str) -> str:
        command = [*(drop if uid else []), Path(sys.executable).with_name(name), *arguments]
        done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, to become another user")
def test_a_moved_study_is_whole_for_another_user(root: Path) -> None:
    project, moved, home = root / "project", root / "elsewhere" / "project", root / "home"
    (project / "data").mkdir(parents=True)
    home.mkdir()
    encoder = load_source(TRANSFORMER, "builtin:tiny", "en")
    encoder.model.save_pretrained(project / "enc")
    encoder.tokenizer.save_pretrained(project / "enc")
    pairs = load_pairs("builtin", "dev", "en")
    rows = zip(pairs.first, pairs.second, pairs.gold, strict=True)
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{c}" for a, b, c in rows)]
    (project / "data" / "pairs.tsv").write_text("\n".join(lines))
    (project / "data" / "train.txt").write_text("\n".join([*pairs.first, *pairs.second]))
    (project / "space.yaml").write_text(SPACE)
    of_uid(0, home)(project, "search", "run", "space.yaml")
    before = of_uid(0, home)(project, "analysis", "best", "--explain")

    moved.parent.mkdir()
    shutil.move(project, moved)
    for path in root.rglob("*"):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    os.chown(home, OTHER_UID, OTHER_UID)
    other, away = of_uid(OTHER_UID, home), home
    storage = ("--storage", str(moved / "runs"))
    assert other(away, "analysis", "best", "--explain", *storage) == before
    other(away, "analysis", "export", "--out", str(home / "model"), *storage)
    assert (home / "model" / "model.safetensors").is_file()

    copy = home / "copy"
    shutil.copytree(moved, copy)
    for path in (copy, *copy.rglob("*")):
        os.chown(path, OTHER_UID, OTHER_UID)
    shutil.rmtree(moved)
    storage = ("--storage", str(copy / "runs"))
    other(away, "search", "confirm", "moved-1", "--top", "1", "--seeds", "1", *storage)
    assert "c000" in other(away, "analysis", "best", *storage)
    other(away, "analysis", "test", "--reason", "moved", "--set", "builtin", *storage)
    assert not project.exists()
    assert not moved.exists()
    with sqlite3.connect(copy / "runs" / "mlflow.db") as database:
        places = [row[0] for row in database.execute("select artifact_uri from runs")]
    assert all(place.startswith((copy / "runs" / "artifacts").as_uri()) for place in places)


@pytest.mark.parametrize(
    ("stored", "there", "expected"),
    [
        ("file:///old/runs/artifacts/s", "new/artifacts/s", "new/artifacts/s"),
        ("file:///old/runs/artifacts/s/1a/artifacts", "new/artifacts/s", "new/artifacts/s/1a/artifacts"),
        ("/old/my%20runs/artifacts/s/1a/artifacts", "new/artifacts/s", "new/artifacts/s/1a/artifacts"),
        ("file:///old/runs/artifacts/s/1a/artifacts", "new", "new/artifacts/s/1a/artifacts"),  # the old one is gone
        ("file:///old/runs/artifacts/s/1a/artifacts", "old/runs/artifacts", None),  # a store of its own place
        ("file:///new/artifacts/s/1a/artifacts", "new/artifacts/s", None),
        ("file:///old/mlruns/0", "new/artifacts/s", None),
        ("s3://bucket/artifacts/s/1a/artifacts", "new/artifacts/s", None),
        ("mlflow-artifacts:/1/1a/artifacts", "new/artifacts/s", None),
    ],
)
def test_artifacts_are_found_beside_a_moved_database(
    tmp_path: Path, stored: str, there: str, expected: str | None
) -> None:
    (tmp_path / there).mkdir(parents=True)
    address = stored.replace("file:///", f"{tmp_path.as_uri()}/").replace("/old/my", f"{tmp_path}/old/my")
    found = moved_artifacts(f"sqlite:///{tmp_path / 'new' / 'mlflow.db'}", address)
    assert found == (expected and tmp_path / expected)
