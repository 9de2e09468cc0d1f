"""Who lists, follows or deletes studies runs nothing of what others wrote into the storage."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from from_outside import EVALUATION, METHOD, changed_space
from harness import World, make_space
from rich.console import Console

from search.cli.main import main
from search.console.live_page import LivePage
from search.running.runner import Options, confirm_study, resume_study
from search.space import SpaceError, load_space
from search.store.journal import Journal, this_user
from search.store.ledger import Ledger
from trainables.contract.errors import EncoderError

pytestmark = pytest.mark.costly
FILES = "import pathlib; pathlib.Path({mark!r}).touch()\n"


def with_method(text: str, plain: dict[str, Any]) -> None:
    plain["plugins"] = [{"file": "/home/mallory/dcl.py", "text": text + METHOD}]
    plain["method"] = "dcl"


def with_evaluation(text: str, plain: dict[str, Any]) -> None:
    plain["plugins"] = [{"file": "/home/mallory/lengths.py", "text": text + EVALUATION}]
    plain["data"]["evaluations"] = {"lengths": None}
    plain["metric"]["name"] = "spread_dev"


def by_path(text: str, plain: dict[str, Any]) -> None:
    (file := Path("evil.py").absolute()).write_text(text + METHOD)
    plain["plugins"], plain["method"] = [str(file)], "dcl"


def with_script(text: str, plain: dict[str, Any]) -> None:
    body = text + "def train(config, report): pass\n"
    plain |= {"method": "script", "script": {"file": "/home/mallory/train.py", "text": body}}
    for key in ("train", "data", "smoke", "preset", "encoder"):
        del plain[key]


def with_module(text: str, plain: dict[str, Any]) -> None:
    """Finding `evil_package.train` imports `evil_package`."""
    (package := Path("evil_package")).mkdir()
    (package / "__init__.py").write_text(text)
    (package / "train.py").write_text("def train(config, report): pass\n")
    with_script("", plain)
    plain["script"] = "evil_package.train:train"


def with_sampler(text: str, plain: dict[str, Any]) -> None:
    plain["search"]["sampler"] = {"class": "/home/mallory/mine.py:Mine", "text": text}


def with_pruner(text: str, plain: dict[str, Any]) -> None:
    """By its path, and of a package that runs when it is imported."""
    (file := Path("evil.py").absolute()).write_text(text)
    plain["pruner"] = {"class": f"{file}:Mine"}
    (package := Path("evil_package")).mkdir()
    (package / "__init__.py").write_text(text)
    plain["search"]["sampler"] = {"class": "evil_package:Mine"}


def with_encoder(text: str, plain: dict[str, Any]) -> None:
    (folder := Path("evil_encoder").absolute()).mkdir()
    auto_map = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": auto_map}))
    (folder / "model.safetensors").touch()
    (folder / "evil.py").write_text(text)
    plain["encoder"] = {"name": str(folder), "trust_remote_code": True}


HOSTILE = [with_method, with_evaluation, by_path, with_script, with_module, with_sampler, with_pruner, with_encoder]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_readers_run_nothing_of_a_stored_space(
    hostile: Callable[[str, dict[str, Any]], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mark = tmp_path / "it ran"
    world = World(make_space({"trials": 3, "baseline": "none"}), tmp_path / "runs")
    world.session()
    plain = world.space.resolved()
    plain.setdefault("smoke", {})
    hostile(FILES.format(mark=str(mark)), plain)
    world.folder.space.write_text(yaml.safe_dump(plain))
    storage = ["--storage", str(world.root)]
    for command in (["list"], ["status", "fake-1"], ["logs", "fake-1"], ["track", "fake-1"]):
        done = CliRunner().invoke(main, [*command, *storage])
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        assert "fake-1" in done.output
        assert not mark.exists()
    page = LivePage(str(world.root), "fake-1", 0)
    try:
        with urllib.request.urlopen(page.url.replace("#" + page.token, "state"), timeout=60) as answer:
            assert json.load(answer)["studies"] == ["fake-1"]
    finally:
        page.close()
    done = CliRunner().invoke(main, ["delete", "fake-1", "--yes", *storage])
    assert done.exit_code == 0, done.output
    assert not mark.exists()


def test_a_stored_space_reads_the_same_without_its_code(outside: Path) -> None:
    """What readers show and MLflow gets does not depend on it."""
    (outside / "data").mkdir()
    path = changed_space(outside, ("dev: [builtin]}", "dev: [builtin], evaluations: {lengths: data}}"))
    loaded = load_space(path, ["metric.name=spread_dev"])
    stored = outside / "space.yaml"
    stored.write_text(loaded.to_yaml())
    read = load_space(stored, run_code=False)
    assert read.resolved() == loaded.resolved()
    assert read.to_yaml() == loaded.to_yaml()
    assert (read.cardinality(), read.known_metric, read.what) == (loaded.cardinality(), False, loaded.what)


@pytest.mark.parametrize(("user", "named"), [("mallory", True), ("", False), (this_user(), False)])
@pytest.mark.parametrize("go_on", [resume_study, confirm_study])
@pytest.mark.parametrize("hostile", [with_method, with_sampler])
def test_code_of_another_users_study_is_named_before_it_runs(
    hostile: Callable[[str, dict[str, Any]], None], go_on: Callable[..., Any], user: str, named: bool, tmp_path: Path
) -> None:
    world = World(make_space({"trials": 1}), tmp_path)
    world.folder.local.mkdir()
    plain = world.space.resolved()
    hostile("raise RuntimeError('it ran')\n", plain)
    world.folder.space.write_text(yaml.safe_dump(plain))
    journal = Journal(world.folder.journal, Ledger())
    journal.append("space", space=plain, uuid="0" * 32, user=user)
    journal.close()
    console = Console(file=io.StringIO(), width=200)
    with pytest.raises(SpaceError, match="it ran"):
        go_on(str(tmp_path), options=Options(console=console))
    file = "dcl.py" if hostile is with_method else "mine.py"
    line = f"/home/mallory/{file}: code of a study that mallory began; it runs as {this_user()}\n"
    assert console.file.getvalue() == (line if named else "")


@pytest.mark.parametrize("go_on", [resume_study, confirm_study])
def test_an_encoders_code_in_another_users_study_does_not_run(
    go_on: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world, mark = World(make_space({"trials": 1}), tmp_path / "runs"), tmp_path / "it ran"
    world.folder.local.mkdir(parents=True)
    plain = world.space.resolved()
    with_encoder(FILES.format(mark=str(mark)), plain)
    world.folder.space.write_text(yaml.safe_dump(plain))
    journal = Journal(world.folder.journal, Ledger())
    journal.append("space", space=plain, uuid="0" * 32, user="mallory")
    journal.close()
    options = Options(console=Console(file=io.StringIO(), width=200))
    with pytest.raises(
        EncoderError, match=r"runs code of its own \(trust_remote_code\), in a study that mallory began"
    ):
        go_on(str(tmp_path / "runs"), options=options)
    assert not mark.exists()
