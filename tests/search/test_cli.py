"""The command line as its user meets it: help at once, one line and exit code 2 for wrong input, a real search."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.costly

SEARCH = str(Path(sys.executable).with_name("search"))
ROOT = Path(__file__).parents[2]


def search(*arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([SEARCH, *arguments], capture_output=True, text=True, timeout=timeout, env=env, check=False)


def good(tmp_path: Path, **changes: str) -> str:
    sections = {
        "name": "tried",
        "method": "simcse",
        "encoder": "builtin:tiny",
        "data": "{train: builtin, dev: [builtin]}",
        "metric": "{name: builtin_dev}",
        "params": "{learning_rate: {float: [1e-4, 5e-3], log: true}, batch_size: 16}",
        "search": "{sampler: random, trials: 2, baseline: none}",
        "train": "{max_examples: 64, eval_examples: 32}",
    } | changes
    path = tmp_path / "tried.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in sections.items()))
    return str(path)


def test_help_is_quick():
    times = []
    for _ in range(3):
        started = time.perf_counter()
        assert search("--help").returncode == 0
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5


@pytest.mark.parametrize(
    ("changes", "arguments", "said"),
    [
        ({"method": "simces"}, [], "tried.yaml:2: method: unknown 'simces'; did you mean 'simcse'?"),
        ({"params": "{learning_rte: 1e-5, learning_rate: {float: [1e-4, 5e-3]}}"}, [], "params.learning_rte: unknown"),
        ({"params": "{batch_size: many, learning_rate: {float: [1e-4, 5e-3]}}"}, [], "params.batch_size: expected a"),
        ({"data": "{train: wikki, dev: [builtin]}"}, [], "data.train: unknown data set 'wikki'; did you mean 'wiki'?"),
        ({"data": "{train: builtin, dev: [builtin, stsbb]}"}, [], "tried.yaml:4: data.dev: unknown data set 'stsbb'"),
        ({"encoder": "/no/folder"}, [], "encoder '/no/folder': no such folder"),
        ({"encoder": "no-such/model"}, [], "hub cannot be reached"),
        ({}, ["--set", "search.trials=none"], "--set search.trials: "),
        ({}, ["--from", "one-1", "--set", "search.start=[paper]"], "--from and --set search.start: give one of them"),
        ({}, ["--storage", "/proc/nowhere"], "cannot be written"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, changes, arguments, said):
    done = search("run", good(tmp_path, **changes), "--storage", str(tmp_path / "runs"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("program", "variable"), [("search", "_SEARCH_COMPLETE"), ("analysis", "_ANALYSIS_COMPLETE")])
def test_the_shell_completion_of_the_readme(program, variable):
    command = str(Path(SEARCH).with_name(program))
    done = subprocess.run(
        [command], env={**os.environ, variable: "bash_source"}, capture_output=True, text=True, check=True
    )
    assert f"complete -o nosort -F _{program}_completion {program}" in done.stdout


@pytest.mark.parametrize("port", ["99999", "-5"])
def test_a_port_that_cannot_be(port: str, tmp_path: Path) -> None:
    done = search("ui", f"--port={port}", "--storage", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.endswith(f"Invalid value for '--port': {port} is not in the range 0<=x<=65535.\n")


def test_missing_file():
    done = search("run", "nowhere.yaml")
    assert search("run", "-q", "nowhere.yaml").stdout == ""
    assert (done.returncode, done.stderr.strip()) == (2, "nowhere.yaml: no such file")


@pytest.mark.parametrize(("kind", "hint"), [("dat", "did you mean 'data'?"), ("mine-1", "`search resume STUDY")])
def test_an_unknown_kind_of_failure_resumes_nothing(tmp_path, kind, hint):
    done = search("resume", "--retry-failed", kind, "--storage", str(tmp_path))
    assert done.returncode == 2
    assert "expected a kind of failure (outside, data, " in done.stderr
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_missing_parser_gives_the_command(tmp_path):
    space = good(tmp_path, method="sda", data="{train: builtin, dev: [builtin], parser: en_core_web_xx}")
    done = search("run", space, "--storage", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "python -m spacy download en_core_web_xx" in done.stderr


def test_check_needs_neither_data_nor_hub(tmp_path):
    done = search("check", str(ROOT / "spaces" / "simcse_unsup.yaml"), good(tmp_path), SEARCH_DATA_DIR="")
    assert done.returncode == 0, done.stderr
    assert "learning_rate: 0.0001 .. 0.005, log" in done.stdout


@pytest.mark.slow  # half a minute; .ci/run's quick start goes the same way
@pytest.mark.ray
def test_a_search_from_start_to_analysis(tmp_path):
    storage = str(tmp_path / "runs")
    done = search("run", good(tmp_path), "--storage", storage, timeout=240)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "study tried-1 is finished" in done.stdout
    listed = json.loads(search("list", "--storage", storage, "--format", "json").stdout)
    assert [(s["study"], s["points"], s["state"]) for s in listed] == [("tried-1", 2, "finished")]
    analysis = str(Path(SEARCH).with_name("analysis"))
    best = subprocess.run(
        [analysis, "best", "--storage", storage, "--format", "json"], capture_output=True, text=True, check=True
    )
    assert "tried-1" in best.stdout
    for trial in ("t0000", "t0001"):
        files = {p.name for p in (tmp_path / "runs" / "tried-1" / "trials" / trial).rglob("*") if p.is_file()}
        assert {"weights.safetensors", "trial.json", "similarities.npz"} <= files
        assert "state.pt" not in files
