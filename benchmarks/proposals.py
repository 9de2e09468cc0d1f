"""What a proposal costs: CPU seconds of one point, per sampler, in studies of 100, 1,000 and 5,000 points.

The study's own sampler, storage and view on it; six hyperparameters, curves at random, halved as `pruner: asha` does:
one point in 27 is completed, the others are paused. `--runs` proposals each.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
import optuna
from search.study.optuna_storage import open_storage

from benchmarks.curves.tables import space_of
from benchmarks.guesses import halved
from search.space import Space, space_from
from search.space.sections import SAMPLERS
from search.store.layout import StudyFolder
from search.study.sampler_view import distribution
from search.study.samplers import PointSampler, key, random_point

SIZES = (100, 1000, 5000)
EVALUATIONS = 12


def run(runs: int) -> dict[str, Any]:
    """A row per sampler."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    for sampler in SAMPLERS:
        if sampler == "grid":
            continue  # looks a row up
        rows.append({"sampler": sampler} | {f"{size} points": seconds(sampler, size, runs) for size in SIZES})
        print(rows[-1], file=sys.stderr, flush=True)
    return {"rows": rows}


def seconds(sampler: str, size: int, runs: int) -> float:
    """Median CPU seconds of a proposal after so many points."""
    plain = space_of("simcse").resolved()
    plain["search"] |= {"sampler": sampler, "trials": 100_000, "baseline": "none"}
    plain["pruner"] |= {"kind": "asha"}
    space, rng, seen = space_from(plain), np.random.default_rng(0), set[str]()
    points = [random_point(space, rng) for _ in range(size)]
    seen.update(map(key, points))
    curves = rng.normal(size=(size, 1)) + rng.normal(0.5, 0.3, (size, EVALUATIONS)).cumsum(1)
    with tempfile.TemporaryDirectory() as root:
        storage = open_storage(StudyFolder(root, "study"))
        proposer = PointSampler(space, seen, storage, lambda number: None)  # noqa: ARG005
        study = optuna.create_study(storage=storage, study_name="study", direction="maximize", sampler=proposer)
        study.add_trials(halved(space, points, curves))
        return statistics.median(_one(study, space) for _ in range(runs))


def _one(study: optuna.Study, space: Space) -> float:
    began = time.process_time()
    asked = study.ask({name: distribution(param) for name, param in space.params.items()})
    taken = time.process_time() - began
    study.tell(asked, 0.0)
    return round(taken, 4)
