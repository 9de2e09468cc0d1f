"""A small study in a real MLflow store, with all a study can hold: pruned, failed, confirmed, repeated trials."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from search import schema
from search.tracking.mlflow_store import make_store

RUNGS = (500, 1000, 2000, 4000)
SPACE: dict[str, Any] = {
    "name": "small",
    "method": "edacse",
    "encoder": "builtin:tiny",
    "preset": "none",
    "data": {"train": "builtin", "dev": ["builtin"], "language": "zh", "parser": None, "columns": None},
    "metric": {"name": "builtin_dev", "mode": "max"},
    "params": {
        "learning_rate": {"float": [1e-6, 1e-2], "log": True},
        "batch_size": {"choice": [8, 16, 32]},
        "max_marks": {"int": [0, 3]},
        "alphabet": {"choice": ["english", "chinese"], "when": {"max_marks": [1, 2, 3]}},
        "temperature": 0.05,
    },
    "search": {"sampler": "random", "trials": 24, "seed": 0, "repeats": 1},
    "pruner": {"kind": "median"},
    "train": {"eval_examples": 500},
}


class SmallStore:
    """Writes studies the way the search does. uri: of the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:///{folder / 'mlflow.db'}"
        make_store(self.uri)
        self.client = MlflowClient(tracking_uri=self.uri)
        self._experiments: dict[str, str] = {}
        self._time = 1_760_000_000_000

    def study(self, study_id: str, space: Mapping[str, Any] = SPACE, status: str | None = "FINISHED") -> str:
        """A study's run; its id. status None = still running."""
        name = space["name"]
        if name not in self._experiments:
            place = (self.folder / "artifacts" / name).as_uri()
            self._experiments[name] = self.client.create_experiment(name, artifact_location=place)
        searched = [k for k, v in space["params"].items() if isinstance(v, dict)]
        searched += [k for k in space.get("points", [{}])[0] if k not in searched]
        tags = {
            schema.ROLE: "study",
            schema.STUDY_ID: study_id,
            schema.METHOD: space["method"],
            schema.METRIC: space["metric"]["name"],
            schema.MODE: space["metric"]["mode"],
            schema.FOLDER: str(self.folder / study_id),
            schema.SEARCHED: ",".join(searched),
        }
        run = self.client.create_run(
            self._experiments[name], start_time=self._tick(), tags=tags, run_name=study_id
        ).info.run_id
        flat = [("search.trials", space["search"].get("trials")), ("search.sampler", space["search"]["sampler"])]
        self.client.log_batch(run, params=[Param(k, str(v)) for k, v in flat])
        self._artifact(run, "space.yaml", yaml.safe_dump(dict(space), sort_keys=False, allow_unicode=True))
        environment = '{"versions": {"python": "3.11", "torch": "2.13"}, "commit": "abc", "machine": {}, "gpus": []}'
        self._artifact(run, "environment.json", environment)
        if status:
            self.client.set_terminated(run, status, end_time=self._tick())
        return run

    def trial(
        self,
        study_run: str,
        study_id: str,
        trial_id: str,
        params: Mapping[str, Any],
        curve: Sequence[float],
        stop: str = "completed",
        seed: int = 0,
        stage: str = "search",
        baseline: bool = False,
        similarities: np.ndarray | None = None,
        gold: np.ndarray | None = None,
        metric: str = "builtin_dev",
        seconds: float = 60.0,
    ) -> str:
        """A trial's run; its id. curve: the metric at RUNGS, as far as the trial came."""
        point = str(sorted(params.items()))
        tags = {
            schema.ROLE: "trial",
            schema.STUDY_ID: study_id,
            schema.TRIAL_ID: trial_id,
            schema.POINT_ID: hashlib.sha256(point.encode()).hexdigest()[:12],
            schema.SEED: str(seed),
            schema.STAGE: stage,
            schema.OPTUNA_NUMBER: trial_id[1:5].lstrip("0") or "0",
            schema.METHOD: "edacse",
            schema.FOLDER: f"trials/{trial_id}",
            schema.PARENT: study_run,
        }
        if stop:
            tags[schema.STOP] = stop
        if stop.startswith("failed"):
            tags[schema.REASON] = "the loss is nan after 500 training examples"
        if baseline:
            tags[schema.BASELINE] = "paper"
        experiment = self.client.get_run(study_run).info.experiment_id
        run = self.client.create_run(experiment, start_time=self._tick(), tags=tags, run_name=trial_id).info.run_id
        at = self._tick()
        metrics = [
            Metric(name, float(value), at + 1000 * i, RUNGS[i])
            for i, score in enumerate(curve)
            for name, value in (
                (metric, score),
                ("loss", 2 - score),
                ("alignment", 0.5 - score / 4),
                ("uniformity", -1 - score),
            )
        ]
        if curve:
            best = int(np.argmax(curve))
            end = {
                schema.best_key(metric): max(curve),
                schema.BEST_AT_EXAMPLES: RUNGS[best],
                schema.TRAIN_SECONDS: seconds * len(curve),
                schema.EXAMPLES_PER_SECOND: RUNGS[0] / seconds,
            }
            metrics += [Metric(name, float(v), at + 9000, RUNGS[len(curve) - 1]) for name, v in end.items()]
        written = [Param(k, str(v)) for k, v in params.items()]
        self.client.log_batch(run, metrics=metrics, params=written, tags=[RunTag("x", "y")])
        if similarities is not None:
            with TemporaryDirectory() as scratch:
                file = Path(scratch) / schema.SIMILARITIES
                set_name = metric.removesuffix("_dev")
                np.savez(file, **{metric: similarities, f"{set_name}{schema.GOLD_SUFFIX}": gold})  # type: ignore[arg-type]
                self.client.log_artifact(run, str(file))
        self.client.set_terminated(run, "FAILED" if stop.startswith("failed") else "FINISHED", end_time=at + 60_000)
        return str(run)

    def _artifact(self, run: str, name: str, text: str) -> None:
        self.client.log_text(run, text, name)

    def _tick(self) -> int:
        self._time += 100_000
        return self._time


def response(learning_rate: float, batch_size: int, max_marks: int) -> float:
    """What a point is worth: a hill over log learning rate, some of the batch size, nothing of the alphabet."""
    hill = math.exp(-((math.log10(learning_rate) + 4) ** 2))
    return 0.3 + 0.3 * hill + 0.002 * batch_size + 0.01 * max_marks


def fill(store: SmallStore, study_id: str = "small-1", trials: int = 24, confirm: bool = True, seed: int = 0) -> str:
    """A finished study: a baseline, some trials pruned, one failed, the best point confirmed on three seeds."""
    rng = np.random.default_rng(seed)
    run = store.study(study_id)
    gold = rng.uniform(0, 5, 200).astype(np.float32)
    points = []
    for i in range(trials):
        point: dict[str, Any] = {
            "learning_rate": 3e-5 if i == 0 else float(10 ** rng.uniform(-6, -2)),
            "batch_size": 32 if i == 0 else int(rng.choice([8, 16, 32])),
            "max_marks": 3 if i == 0 else int(rng.integers(0, 4)),
            "alphabet": None,
            "temperature": 0.05,
        }
        if point["max_marks"]:
            point["alphabet"] = "english" if i == 0 else str(rng.choice(["english", "chinese"]))
        value = response(point["learning_rate"], point["batch_size"], point["max_marks"]) + rng.normal(0, 0.005)
        points.append((value, point))
        curve = [value * (1 - 0.3 / (k + 1)) for k in range(3)] + [value]
        stop = "failed:nan" if i == 5 else ("pruned" if i % 5 == 4 else "completed")
        curve = {"failed:nan": [], "pruned": curve[:2]}.get(stop, curve)
        noise = rng.normal(0, 1, 200)
        similarities = (gold / 5 * value + 0.2 * noise).astype(np.float32)
        store.trial(
            run, study_id, f"t{i:04}", point, curve, stop, baseline=i == 0, similarities=similarities, gold=gold,
            seconds=float(rng.uniform(10, 90)),
        )  # fmt: skip
    if confirm:
        best = max((p for i, p in enumerate(points) if i != 5 and i % 5 != 4), key=lambda p: p[0])
        for which, (value, point) in enumerate([best, points[0]]):
            for k in range(3):
                curve = [value - 0.02 + rng.normal(0, 0.005)] * 4
                similarities = (gold / 5 * value + 0.2 * rng.normal(0, 1, 200)).astype(np.float32)
                store.trial(
                    run, study_id, f"c{which:04}.{k}", point, curve, seed=100 + k, stage="confirm", baseline=which == 1,
                    similarities=similarities, gold=gold,
                )  # fmt: skip
    return run
