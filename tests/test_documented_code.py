"""Code blocks of docs/ do what their pages state: the script, the parts of a method, the defaults, the completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from documented import BLOCKS, Block

from search.cli.main import main


def test_the_documented_script_trains_reports_and_resumes() -> None:
    """Its model is the reader's: a counter stands for it."""
    (block,) = [b for b in BLOCKS if b.kind == "python" and "def train(config, report)" in b.text]
    steps: list[int] = []
    model = SimpleNamespace(train_on=steps.append, score=lambda: 0.5, save=lambda _: None, load=lambda _: 64)
    scope: dict[str, Any] = {"make": lambda _: model}
    exec(compile(block.text, str(block), "exec"), scope)
    told: list[tuple[int, Any]] = []

    def report(examples: int, values: dict[str, float], *, of: int, checkpoint: str) -> str:
        assert (values, of) == ({"stsb_dev": 0.5}, 8192)
        told.append((examples, checkpoint))
        return "prune" if examples >= 1280 else "go"

    config = {"learning_rate": 1e-3, "batch_size": 16, "eval_examples": 512, "resume": None, "checkpoints": "states"}
    scope["train"](config, report)
    assert (len(steps), told) == (96, [(512, "states/32.pt"), (1024, "states/64.pt"), (1536, "states/96.pt")])
    scope["train"]({**config, "resume": "states/64.pt"}, report)
    assert len(steps) == 96 + 32


def test_the_documented_script_evaluates_where_trials_are_compared() -> None:
    """The k-th evaluation counts as k times `eval_examples`: so many have been trained on, with every batch size."""
    (block,) = [b for b in BLOCKS if b.kind == "python" and "def train(config, report)" in b.text]
    (space,) = [b for b in BLOCKS if b.kind == "yaml" and b.page == block.page]
    params = yaml.safe_load(space.text)["params"]
    model = SimpleNamespace(train_on=lambda _: None, score=lambda: 0.5, save=lambda _: None)
    scope: dict[str, Any] = {"make": lambda _: model}
    exec(compile(block.text, str(block), "exec"), scope)
    every = params["eval_examples"]
    for batch_size in params["batch_size"]["choice"]:
        evaluations: list[int] = []

        def report(examples: int, *_: Any, found: list[int] = evaluations, **__: Any) -> str:
            found.append(examples)
            return "go"

        config = {"learning_rate": 1e-3, "eval_examples": every, "resume": None, "checkpoints": "states"}
        scope["train"]({**config, "batch_size": batch_size}, report)
        assert evaluations == [every * k for k in range(1, 8192 // every + 1)]


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind == "python" and b.page.name == "method.md"], ids=str)
def test_parts_of_a_method_run(block: Block, tmp_path: Path) -> None:
    import numpy as np

    from trainables.contract.config import hyperparameters

    scope: dict[str, Any] = {"__name__": "mine"}
    sys.modules["mine"] = SimpleNamespace(__dict__=scope)  # type: ignore[assignment]  # dataclasses read it from there
    try:
        exec(compile(block.text, str(block), "exec", dont_inherit=True), scope)
    finally:
        del sys.modules["mine"]
    if "MyConfig" in scope:
        assert hyperparameters(scope["MyConfig"])["margin"].default == 0.1
    elif "TripletConfig" in scope:
        values = {name: field.default for name, field in hyperparameters(scope["TripletConfig"]).items()}
        assert scope["TripletConfig"].unused(values | {"loss": "softplus"})["margin"] == ("loss", "softplus")
        assert [name for name, _ in scope["TripletConfig"].conflicts(values | {"batch_size": 4})] == ["batch_size"]
    else:
        (tmp_path / "texts.txt").write_text("one\ntwo\n")
        assert scope["EVALUATION"].evaluate(lambda lines: np.eye(len(lines)), tmp_path) == {"topics": 0.5}


def test_the_documented_defaults_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [b for b in BLOCKS if b.kind == "toml" and b.page.name == "settings.md"]
    (tmp_path / "config.toml").write_text(block.text)
    monkeypatch.setenv("SEARCH_CONFIG", str(tmp_path / "config.toml"))
    for name in ("MLFLOW_TRACKING_URI", "SEARCH_STORAGE"):
        monkeypatch.delenv(name, raising=False)
    said = CliRunner().invoke(main, ["config"]).output
    assert [value in said for value in ("/data/searches", "http://mlflow.example:5000", "/home/me/cluster.yaml")] == [
        True, True, True
    ]  # fmt: skip


@pytest.mark.slow
def test_the_completion_of_the_shell() -> None:
    (line,) = {line for block in BLOCKS for line in block.text.splitlines() if line.startswith("eval ")}
    programs = Path(sys.executable).parent
    own = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    shown = subprocess.run(
        ["bash", "-c", f"{line}\ncomplete -p search analysis"], env=own, text=True, capture_output=True, check=True
    )
    assert [line.split()[-1] for line in shown.stdout.splitlines()] == ["search", "analysis"]
