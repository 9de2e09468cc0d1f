"""A tracking store of any size, fast: MLflow makes the schema and the study, SQL in bulk writes the trials."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Param, RunTag

from search import schema
from search.tracking.mlflow_store import make_store as make_empty

EVALUATIONS = 16
STEP = 8000  # training examples between two evaluations
SETS = ("stsb_dev", "sickr_dev")
OTHERS = ("loss", "alignment", "uniformity")


def make_store(path: Path, trials: int, seed: int = 0, pairs: int = 1500) -> str:
    """Write a finished study of `trials` completed one-seed trials to a new SQLite store; the store's URI.

    Similarities are stored for the ten best and the baseline, which is all that a verdict reads.
    """
    rng = np.random.default_rng(seed)
    uri = f"sqlite:///{path}"
    make_empty(uri)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("large", artifact_location=(path.parent / "artifacts").as_uri())
    tags = {
        schema.ROLE: "study", schema.STUDY_ID: "large-1", schema.METHOD: "simcse", schema.METRIC: "stsb_dev",
        schema.MODE: "max", schema.SEARCHED: "learning_rate,batch_size,dropout,temperature",
    }  # fmt: skip
    study = client.create_run(experiment, tags=tags, run_name="large-1").info.run_id
    client.log_batch(
        study, params=[Param("search.trials", str(trials))], tags=[RunTag(schema.FOLDER, str(path.parent))]
    )
    client.set_terminated(study)

    ids = [uuid.UUID(bytes=rng.bytes(16)).hex for _ in range(trials)]
    level = 0.75 + rng.normal(0, 0.005, trials)
    artifacts = {run: (path.parent / "artifacts" / run / "artifacts") for run in ids}
    columns = (
        "run_uuid, name, source_type, user_id, status, start_time, end_time, lifecycle_stage, artifact_uri, "
        "experiment_id"
    )
    rows: dict[str, list[tuple[object, ...]]] = {
        "runs": [],
        "tags": [],
        "params": [],
        "metrics": [],
        "latest_metrics": [],
    }
    for i, run in enumerate(ids):
        start = 1_760_000_000_000 + 60_000 * i
        rows["runs"].append(
            (
                run,
                f"t{i:04}",
                "LOCAL",
                "somebody",
                "FINISHED",
                start,
                start + 50_000,
                "active",
                artifacts[run].as_uri(),
                experiment,
            )
        )
        rows["tags"] += [(key, value, run) for key, value in _tags(i, run, study).items()]
        rows["params"] += [(key, value, run) for key, value in _params(rng).items()]
        metrics = _metrics(level[i], rng)
        rows["metrics"] += [(key, value, start + step, run, step, 0) for key, step, value in metrics]
        latest = {key: (value, step) for key, step, value in metrics}
        rows["latest_metrics"] += [(key, value, start, step, 0, run) for key, (value, step) in latest.items()]
    names = {
        "runs": columns, "tags": "key, value, run_uuid", "params": "key, value, run_uuid",
        "metrics": "key, value, timestamp, run_uuid, step, is_nan",
        "latest_metrics": "key, value, timestamp, step, is_nan, run_uuid",
    }  # fmt: skip
    with sqlite3.connect(path) as db:
        for table, values in rows.items():
            marks = ",".join("?" * len(values[0]))
            db.executemany(f"INSERT INTO {table} ({names[table]}) VALUES ({marks})", values)
    gold = rng.normal(size=pairs).astype(np.float32)
    for i in {0, *np.argsort(-level)[:10].tolist()}:
        artifacts[ids[i]].mkdir(parents=True)
        cosines = (gold + 0.8 * rng.normal(size=pairs)).astype(np.float32)
        np.savez(artifacts[ids[i]] / schema.SIMILARITIES, stsb_dev=cosines, stsb_gold=gold)
    return uri


def _tags(i: int, run: str, study: str) -> dict[str, str]:
    tags = {
        schema.ROLE: "trial", schema.STUDY_ID: "large-1", schema.TRIAL_ID: f"t{i:04}", schema.POINT_ID: run[:12],
        schema.SEED: "0", schema.STAGE: "search", schema.STOP: "completed", schema.OPTUNA_NUMBER: str(i),
        schema.METHOD: "simcse", schema.FOLDER: f"trials/t{i:04}", schema.PARENT: study, "mlflow.runName": f"t{i:04}",
    }  # fmt: skip
    return tags | ({schema.BASELINE: "paper"} if i == 0 else {})


def _params(rng: np.random.Generator) -> dict[str, str]:
    searched = {
        "learning_rate": f"{10 ** rng.uniform(-6, -4):.3g}", "batch_size": str(rng.choice([32, 64, 128])),
        "dropout": f"{rng.uniform(0, 0.3):.2f}", "temperature": f"{rng.uniform(0.01, 0.1):.3f}",
    }  # fmt: skip
    return searched | {f"constant_{k}": str(k) for k in range(16)}


def _metrics(level: float, rng: np.random.Generator) -> list[tuple[str, int, float]]:
    steps = range(STEP, STEP * (EVALUATIONS + 1), STEP)
    curves = {name: level - 0.05 / (1 + np.arange(EVALUATIONS)) + rng.normal(0, 1e-3, EVALUATIONS) for name in SETS}
    curves |= {name: rng.normal(size=EVALUATIONS) for name in OTHERS}
    best = int(curves[SETS[0]].argmax())
    ends = {
        **{schema.best_key(name): float(curves[name][best]) for name in SETS},
        schema.BEST_AT_EXAMPLES: float(steps[best]), schema.TRAIN_SECONDS: 300.0, schema.EXAMPLES_PER_SECOND: 420.0,
    }  # fmt: skip
    logged = [
        (name, step, float(value)) for name, curve in curves.items() for step, value in zip(steps, curve, strict=True)
    ]
    return logged + [(name, steps[-1], value) for name, value in ends.items()]
