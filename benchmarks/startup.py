"""What a trial costs besides its training: ours with one and two workers, Ray's plain way with two.

Ours: real studies of the builtin encoder with one optimiser step per trial, one trial at a time. The cost of a trial
is the time from the end of the one before to its own end, less the training and evaluation seconds it reports: network,
optimiser, files, and the way through Tune. Plain: the documented pattern, a function that fits a TorchTrainer per
trial; its cost is the time from the end of one training function to the start of the next one's.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ONE, TWO, PLAIN = "ours, 1 worker", "ours, 2 workers", "TorchTrainer per trial, 2 workers"


def run(runs: int) -> dict[str, Any]:
    """Median seconds per trial over 20 one-worker and `runs` + 1 two-worker trials; the first of each stands apart."""
    costs = {ONE: ours(20, workers=1), TWO: ours(runs + 1, workers=2), PLAIN: plain(runs + 1)}
    rows = [
        {
            "trials": name,
            "first s": round(first, 2),
            "median s of the others": round(statistics.median(others), 3),
            "ratio to plain": round(statistics.median(others) / statistics.median(costs[PLAIN][1]), 4),
        }
        for name, (first, others) in costs.items()
    ]
    return {"rows": rows, "costs": costs}


def ours(trials: int, workers: int) -> tuple[float, list[float]]:
    """(seconds before the first trial's first step, seconds of every later trial besides its training)."""
    from rich.console import Console

    from search.running.runner import Options, run_study
    from search.space import space_from
    from search.store.journal import read

    space = space_from(
        {
            "name": "startup",
            "method": "simcse",
            "encoder": "builtin:tiny",
            "preset": "none",
            "data": {"train": "builtin", "dev": ["builtin"], "language": "en"},
            "metric": {"name": "builtin_dev"},
            "params": {"learning_rate": {"float": [1e-5, 1e-3], "log": True}, "batch_size": 2},
            "search": {"sampler": "random", "trials": trials, "concurrent": 1, "baseline": "none"},
            "pruner": {"kind": "none"},
            "resources": {"workers": workers, "cpus": 1},
            "train": {"max_examples": 2, "eval_examples": 2},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        result = run_study(space, folder, options=Options(console=Console(quiet=True), handle_signals=False))
        assert result.ledger.stops["completed"] == trials, result.frequent_reasons
        ends = [(e["t"] / 1000, e["seconds"]) for e in read(result.folder.journal) if e["e"] == "end"]
    first = ends[0][0] - ends[0][1] - begun
    return first, [end - seconds - before for (before, _), (end, seconds) in pairwise(ends)]


def plain(trials: int) -> tuple[float, list[float]]:
    """The same of the documented pattern: (seconds before the first training function, between later ones)."""
    import ray
    import ray.train
    from ray import tune
    from ray.train.torch import TorchTrainer
    from ray.tune.integration.ray_train import TuneReportCallback

    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times"

        def work() -> None:
            begun = time.time()
            ray.train.report({"value": 0.0})
            if ray.train.get_context().get_world_rank() == 0:
                with times.open("a") as f:
                    f.write(json.dumps([begun, time.time()]) + "\n")

        def trial(config: dict[str, Any]) -> None:
            TorchTrainer(
                work,
                scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
                run_config=ray.train.RunConfig(
                    name=f"trial-{config['number']}", storage_path=folder, callbacks=[TuneReportCallback()]
                ),
            ).fit()

        begun = time.time()
        # Four logical CPUs: the pattern's own processes reserve some, and more than two cores would hide no cost.
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        try:
            tune.Tuner(
                trial,
                param_space={"number": tune.grid_search(list(range(trials)))},
                tune_config=tune.TuneConfig(max_concurrent_trials=1),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
        finally:
            ray.shutdown()
        spans = [json.loads(line) for line in times.read_text().splitlines()]
    assert len(spans) == trials, spans
    return spans[0][0] - begun, [later[0] - earlier[1] for earlier, later in pairwise(spans)]
