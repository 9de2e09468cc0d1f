"""Anything of a study killed by SIGKILL at a random moment; resumed to its end, nothing is lost and nothing doubled."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import World, make_space
from orders import orders
from processes import below, sigkill

from search import schema
from search.space import Space
from search.store.journal import fold, read
from search.store.layout import StudyFolder
from search.store.ledger import Ledger, Trial
from search.study.samplers import key
from search.tracking.mlflow_store import make_store

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]
HERE = Path(__file__).parent
ROUNDS = int(os.environ.get("KILL_ROUNDS", "5"))  # of each target
TARGETS = ("driver", "trial", "raylet", "tracker")
BEHIND = 3  # exit code of a finished session whose tracker did not keep up: it is resumed like others
CHILD = f"""
import sys
BEHIND = {BEHIND}
from fake_trial import FakeTrial
from rich.console import Console
from search.running.runner import Options, confirm_study, resume_study, run_study
from search.space import load_space
options = Options(trainable=FakeTrial, console=Console(quiet=True))
if sys.argv[1] == "run":
    result = run_study(load_space(sys.argv[2]), sys.argv[3], name="study", options=options)
elif sys.argv[1] == "confirm":
    result = confirm_study(sys.argv[3], top=2, seeds=3, options=options)
else:
    result = resume_study(sys.argv[3], options=options)
sys.exit(result.exit_code or (BEHIND if result.trouble else 0))
"""


class Server:
    """An MLflow server on loopback that can be killed and started again. database: its URI, SQLite without one."""

    def __init__(self, root: Path, database: str = "") -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.root, self.database = root, database or f"sqlite:///{root / 'mlflow.db'}"
        self.uri = f"http://127.0.0.1:{self.port}"
        make_store(self.database)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port),
             "--workers", "1", "--backend-store-uri", self.database,
             "--artifacts-destination", str(self.root / "artifacts")],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        until = time.monotonic() + 120
        while socket.socket().connect_ex(("127.0.0.1", self.port)) != 0:
            assert time.monotonic() < until, "the MLflow server does not start"
            time.sleep(0.2)

    def kill(self) -> None:
        sigkill([*below(self.process.pid), psutil.Process(self.process.pid)])
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


def session(command: str, space: Space, root: Path, server: Server) -> subprocess.Popen[bytes]:
    file = root / "given.yaml"
    file.write_text(space.to_yaml())
    path = f"{HERE}:{HERE.parents[1]}"
    env = {**os.environ, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": server.uri, "OMP_NUM_THREADS": "1"}
    env.pop("RAY_ADDRESS", None)
    return subprocess.Popen([sys.executable, "-c", CHILD, command, str(file), str(root / "runs")], env=env)


def victims(driver: subprocess.Popen[bytes], target: str) -> list[psutil.Process]:
    """Processes of a study: its driver, its raylet, or one that runs a trial."""
    if target == "driver":
        return [psutil.Process(driver.pid)]
    return below(driver.pid, "raylet" if target == "raylet" else "ray::FakeTrial")


def disturb(target: str, driver: subprocess.Popen[bytes], server: Server, rng: random.Random) -> None:
    """Kill one process of the target; an MLflow server comes back within a second."""
    if target == "tracker":
        server.kill()
        time.sleep(rng.random())
        server.start()
    else:
        sigkill(victims(driver, target)[:1])


def wait_for_start(folder: StudyFolder, driver: subprocess.Popen[bytes], evaluations: int) -> None:
    until = time.monotonic() + 120
    while sum(e["e"] == "eval" for e in read(folder.journal)) < evaluations:
        assert driver.poll() is None, f"the driver ended with {driver.returncode}"
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("target", TARGETS)
def test_killed_study_resumes_to_the_same_end(target: str, round_: int, server: Server, tmp_path: Path) -> None:
    rng = random.Random(f"{target}{round_}")
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(sleep=0.03)}
    params = {"learning_rate": {"grid": [1e-5, 3e-5, 1e-4]}, "batch_size": {"choice": [16, 32, 64]}}
    grid = {"sampler": "grid", "trials": None, "max_retries": 5}
    name = f"{target}-{round_}"
    if round_ % 2:
        space = make_space({**grid}, name=name, data=data, params=params)
    else:
        space = make_space({"trials": 9, "max_retries": 5}, name=name, data=data)
    undisturbed = World(space, tmp_path / "undisturbed").session().ledger
    folder = StudyFolder(str(tmp_path / "runs"), "study")
    driver = session("run", space, tmp_path, server)
    wait_for_start(folder, driver, rng.randrange(1, 30))
    disturb(target, driver, server, rng)
    code = driver.wait(timeout=300)
    sessions = 1
    while code != 0:
        assert sessions < 5
        code = session("resume", space, tmp_path, server).wait(timeout=300)
        sessions += 1
    if target == "driver":
        assert sessions >= 2
    ledger = fold(folder.journal, Ledger())
    ran = {i: (key(s.trial.point), s.trial.seed) for i, s in ledger.trials.items()}
    assert ran == {i: (key(s.trial.point), s.trial.seed) for i, s in undisturbed.trials.items()}
    assert ledger.stops == {"completed": 9}
    check_mlflow(server.uri, name, ledger)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("stage", ["resume", "confirm"])
@pytest.mark.parametrize("target", TARGETS)
def test_killed_later_session_resumes(target: str, stage: str, round_: int, server: Server, tmp_path: Path) -> None:
    """A resumed search, or one that confirms: resumed again, every point has run once on every seed."""
    rng = random.Random(f"{target}{stage}{round_}")
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(sleep=0.03)}
    name = f"{stage}-{target}-{round_}"
    space = make_space({"trials": 5, "max_retries": 5}, name=name, data=data)
    folder = StudyFolder(str(tmp_path / "runs"), "study")
    driver = session("run", space, tmp_path, server)
    if stage == "resume":
        wait_for_start(folder, driver, rng.randrange(1, 12))
        driver.kill()
    driver.wait(timeout=300)
    before = sum(e["e"] == "eval" for e in read(folder.journal))
    driver = session(stage, space, tmp_path, server)
    wait_for_start(folder, driver, before + rng.randrange(1, 12))
    disturb(target, driver, server, rng)
    code, sessions = driver.wait(timeout=300), 2
    while code != 0:
        assert sessions < 6
        code, sessions = session("resume", space, tmp_path, server).wait(timeout=300), sessions + 1
    ledger = fold(folder.journal, Ledger())
    ran = [(r.trial.stage, key(r.trial.point), r.trial.seed) for r in ledger.trials.values()]
    assert len(set(ran)) == len(ran)
    assert sum(where == "search" for where, *_ in ran) == 5
    confirmed = {number for where, number in ledger.by_point if where == "confirm"}
    assert len(confirmed) in ((0,) if stage == "resume" else (2, 3))  # the baseline may be among the best two
    assert ledger.stops == {"completed": len(ran)}
    check_mlflow(server.uri, name, ledger)


@pytest.mark.slow
@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_killed_asha_search_resumes(round_: int, concurrent: int, server: Server, tmp_path: Path) -> None:
    """The same points and seeds as undisturbed; one trial at a time also the same promotions (with several they depend
    on who is faster), and no paused trial is forgotten."""
    rng = random.Random(f"asha{concurrent}{round_}")
    data = {"train": "builtin", "dev": ["stsb"], "columns": orders(sleep=0.03)}
    search = {"trials": 14, "max_retries": 5, "concurrent": concurrent}
    name = f"asha-{concurrent}-{round_}"
    space = make_space(search, name=name, data=data, pruner={"kind": "asha"}, resources={"cpus": 0.25})
    undisturbed = World(space, tmp_path / "undisturbed", value=fake_value).session(concurrency=concurrent).ledger
    folder = StudyFolder(str(tmp_path / "runs"), "study")
    driver = session("run", space, tmp_path, server)
    wait_for_start(folder, driver, rng.randrange(1, 15))
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    codes = [BEHIND]
    while codes[-1] == BEHIND and len(codes) < 5:
        codes.append(session("resume", space, tmp_path, server).wait(timeout=300))
    assert codes[-1] == 0
    ledger = fold(folder.journal, Ledger())
    ran = {i: (key(s.trial.point), s.trial.seed) for i, s in ledger.trials.items()}
    assert ran == {i: (key(s.trial.point), s.trial.seed) for i, s in undisturbed.trials.items()}
    assert set(ledger.stops) == {"completed", "pruned"}
    assert ledger.ended() == 14
    if concurrent == 1:
        ends = {i: (s.state, s.examples, s.rungs) for i, s in ledger.trials.items()}
        assert ends == {i: (s.state, s.examples, s.rungs) for i, s in undisturbed.trials.items()}
    client = mlflow_client(server.uri)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    stops = {run.data.tags[schema.TRIAL_ID]: run.data.tags[schema.STOP] for run in runs if schema.STOP in run.data.tags}
    assert stops == {i: s.state for i, s in ledger.trials.items()}


def fake_value(trial: Trial, k: int) -> float:
    """What FakeTrial shows: its noise is not the harness's own."""
    from fake_trial import curve

    return curve(trial, k)  # type: ignore[arg-type]  # it reads params and seed, which both have


def mlflow_client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(uri)


def check_mlflow(uri: str, name: str, ledger: Ledger) -> None:
    """MLflow and the study agree trial by trial; nothing is left RUNNING."""
    client = mlflow_client(uri)
    found = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    by_id = {run.data.tags.get(schema.TRIAL_ID, "study"): run for run in found}
    assert len(by_id) == len(found) == len(ledger.trials) + 1
    assert {run.info.status for run in found} == {"FINISHED"}
    for trial_id, record in ledger.trials.items():
        run = by_id[trial_id]
        assert run.data.tags[schema.STOP] == record.state
        assert run.data.metrics["best_stsb_dev"] == pytest.approx(record.best)
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "stsb_dev")]
        assert steps == [100, 200, 300, 400, 500, 600]
