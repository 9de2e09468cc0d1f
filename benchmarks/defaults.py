"""A real search by the shipped default against the one before it, at the same training.

English SimCSE on the first layer of MiniLM, the space of `benchmarks/curves/simcse.yaml`, 20 whole trials of 960
examples, `search run` as a process, two trials at once. The sides alternate, run k with seed k on both. What a side
found is the point that `analysis best` would name: the best mean over seeds. What it is worth is told by `FRESH`
further seeds, trained after the clock has stopped: `fresh` on the pairs that selected, `held out` on pairs that chose
nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.curves.record import record
from benchmarks.curves.tables import HERE, Inputs, make_inputs
from benchmarks.curves.tables import space_of as table_space
from trainables.training.trial import ProcessCache

BUDGET = 20
FRESH = range(10_000, 10_005)  # seeds that no search had
SIDES: dict[str, dict[str, Any]] = {
    "tpe, hyperband (before)": {
        "search": {"sampler": "tpe", "repeats": 1}, "pruner": {"kind": "hyperband", "reduction": 3},
    },
    "auto, asha, 3 seeds (shipped)": {
        "search": {"sampler": "auto", "repeats": 3}, "pruner": {"kind": "asha", "reduction": 3},
    },
}  # fmt: skip


def space_of(side: str, inputs: Inputs, seed: int) -> dict[str, Any]:
    """The space file of one side, as plain data."""
    plain: dict[str, Any] = yaml.safe_load((HERE / "simcse.yaml").read_text("utf-8"))
    plain |= {"name": "defaults", "encoder": inputs.encoder}
    plain["data"] |= {"train": inputs.train, "dev": [inputs.selecting, inputs.held_out]}
    plain["search"] = {"budget": BUDGET, "trials": 120, "seed": seed, "baseline": "paper", **SIDES[side]["search"]}
    return plain | {"pruner": SIDES[side]["pruner"], "resources": {"cpus": 1}}


def searched(side: str, inputs: Inputs, seed: int, scratch: Path) -> dict[str, Any]:
    """One search: seconds from start to exit, values of the named point, and what became of its trials."""
    from search.store.journal import fold, read
    from search.store.layout import StudyFolder
    from search.store.ledger import Ledger

    storage = Path(tempfile.mkdtemp(dir=scratch))
    file = storage / "defaults.yaml"
    file.write_text(yaml.safe_dump(space_of(side, inputs, seed), sort_keys=False), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("search")), "run", str(file), "--storage", str(storage)]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - started
    journal = StudyFolder(str(storage), "defaults-1").journal
    events = list(read(journal))
    points: dict[int, list[Any]] = {}
    ledger = fold(journal, Ledger())
    for trial in ledger.trials.values():
        if trial.state == "completed":
            points.setdefault(trial.trial.number, []).append(trial)
    least = max(map(len, points.values())) / 2
    named = max(
        (seeds for seeds in points.values() if len(seeds) >= least),
        key=lambda seeds: statistics.fmean(one.best for one in seeds),
    )
    kinds = Counter(event["e"] for event in events)
    return {
        "seconds": seconds,
        "best": statistics.fmean(one.best for one in named),
        **worth(named[0].trial.point, inputs),
        "points": len({one.trial.number for one in ledger.trials.values()}),
        "completed": ledger.stops["completed"],
        "paused": kinds["pause"],
        "promoted": kinds["again"],
        "started again": kinds["retry"],
        "failed": ledger.failed(),
    }


def worth(point: Mapping[str, Any], inputs: Inputs) -> dict[str, float]:
    """Means over fresh seeds of a point's best evaluation, and of the held-out value there."""
    space, warm = table_space("simcse"), ProcessCache()
    best = [max(record(space, inputs, dict(point), seed, warm)["curve"], key=lambda row: row[1]) for seed in FRESH]
    return {"fresh": statistics.fmean(row[1] for row in best), "held out": statistics.fmean(row[2] for row in best)}


def run(runs: int) -> dict[str, Any]:
    """Rows: the two sides, medians. gains: what the second has more than the first, run by run."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        inputs = make_inputs("simcse", scratch / "inputs")
        taken: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for seed in range(runs):
            for side in SIDES:
                taken[side].append(searched(side, inputs, seed, scratch))
                print(side, seed, taken[side][-1], file=sys.stderr, flush=True)
    before, shipped = taken.values()
    rows = [{"side": side} | {name: statistics.median(r[name] for r in found) for name in found[0]}
            for side, found in taken.items()]  # fmt: skip
    pairs = list(zip(before, shipped, strict=True))
    gained = {name: [new[name] - old[name] for old, new in pairs] for name in ("fresh", "held out")}
    return {"rows": rows, "gains": gained, "runs": taken}
