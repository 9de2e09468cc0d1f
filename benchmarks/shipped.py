"""What `analysis best` claims after a search and a confirmation as the shipped spaces have them, truth being known.

    python -m benchmarks.shipped --studies 500 --seed 1 --cells '^(?!.*points)'

The plan is the real one: driver, journal, `sampler: auto`, `asha`, repeats for the best third, adaptive confirmation;
training alone is simulated, in points (metric x 100):

    evaluation = LEVEL + learning + effect of the point + pairs' effect on all models, on the point and on the trial
                 + effect of the seed + noise of the evaluation

A trial's value is its best evaluation. The pairs' effects have the sizes of tests/analysis/simulate.py; half of that on
a point it shares with points near it. Searches have 10 points, all of which `auto` draws evenly: a proposal of its
Gaussian process takes 0.2 s (`auto` with 16 points and `random` with 120 have worlds of their own: `--cells points`).
Each search is confirmed twice, with 1 and with 8 trials at once: two rows that share their searches.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "analysis"))
from simulate import (  # type: ignore[import-not-found]  # of the tests, found by path
    BANKS,
    COMMON_SD,
    CONFIGURATION_SD,
    LEVEL,
    OWN_SD,
    SEED_SHARED,
    SHARES,
    Bank,
)  # fmt: skip

from analysis.statistics.picked import EvaluatedPoints
from analysis.statistics.seed_noise import SeedValues, unknown_metric
from analysis.statistics.verdict import Verdict, judged
from analysis.tables.metric import Metric
from analysis.tables.trials import points_table
from benchmarks.curves.play import Ours, play
from benchmarks.curves.surrogate import Surrogate
from search.schema import CONFIRMATION_TRIALS
from search.space import Space, load_space, paper_point
from search.store.ledger import Ledger
from search.study.sampler_view import inputs
from search.study.samplers import Point, key

Floats = NDArray[np.float64]
TRIALS, BUDGET, REPEATS = 10, 20, 3  # of a search; a shipped one may have 120 points
PLACES = (1, 8)  # confirming trials at once
EVALUATIONS, RUNG = 12, 80  # of a trial, and examples between two
LEARNT = 0.5  # of a trial, after which its curve is flat
SLOWEST = 6.0  # by how much a curve begins below its end, at most
LENGTH = 0.3  # over which the pairs' effect on points changes, of the unit cube
REACH = 0.55  # of the better region: its inner half is flat
FLAT, FALL = 0.35, 20.0  # distance in learning rate from the baseline's without a loss, and its slope beyond
OF_EVALUATION = (0.3, 0.45)  # sd of an evaluation, of the seed's and of the pairs' effect on a trial
QUERY_SD = 33.0  # of nDCG x 100 over queries


@dataclass(frozen=True)
class World:
    """best: how much better the best region is than the baseline. sd: of a trial over seeds. Both in points.

    size: pairs or queries. trials, sampler: of the space's section `search`.
    """

    best: float = 0.0
    sd: float = 0.5
    size: int = 1500
    retrieval: bool = False
    sampler: str = "auto"
    trials: int = TRIALS

    @property
    def name(self) -> str:
        what = "queries" if self.retrieval else "pairs"
        best = f"+{self.best:g}" if self.best else "null"
        points = f", {self.trials} points by {self.sampler}" if self.trials != TRIALS else ""
        return f"{self.size:,} {what}, sd {self.sd:g}, {best}{points}"

    @property
    def pair_sds(self) -> tuple[float, float, float]:
        """Of the pairs' effect on all models, on a point, on a trial."""
        if self.retrieval:
            return tuple(QUERY_SD * np.sqrt(np.array(SHARES) / self.size))  # type: ignore[return-value]
        return tuple(np.array([COMMON_SD, CONFIGURATION_SD, OWN_SD]) * np.sqrt(1500 / self.size))  # type: ignore[return-value]


def worlds() -> list[World]:
    """Each is confirmed with 1 and with 8 places: two rows."""
    many: dict[str, Any] = {"sampler": "random", "trials": 120}
    return [
        World(0.0, 0.5, 1500), World(0.0, 1.5, 150), World(0.5, 0.2, 6000), World(1.0, 0.5, 50, retrieval=True),
        World(2.0, 1.0, 1500), World(0.0, 0.2, 600, retrieval=True),
        World(0.0, 1.5, 150, **many), World(1.0, 0.5, 1500, **many), World(0.0, 0.5, 1500, trials=16),
    ]  # fmt: skip


class Queries(Bank):  # type: ignore[misc]
    """The values of queries, in place of cosines."""

    metric = Metric("nfcorpus_ndcg10_dev", ("nfcorpus_ndcg10_dev",))

    def __call__(self, run_id: str) -> dict[str, NDArray[np.float32]]:
        trial, point = map(int, run_id.split(":"))
        size = len(self.gold)
        rng = np.random.default_rng([size, point])
        shared, own = rng.standard_normal(size), np.random.default_rng([size, point, trial]).standard_normal(size)
        parts = np.sqrt(SHARES[0]) * self.gold + np.sqrt(SHARES[1]) * shared + np.sqrt(SHARES[2]) * own
        return {"nfcorpus_ndcg10_queries": (QUERY_SD / 100 * parts).astype(np.float32)}


@cache
def bank(world: World, number: int) -> Bank:
    return (Queries if world.retrieval else Bank)(world.size, number)


@cache
def space(retrieval: bool) -> Space:
    dev = "my/nfcorpus" if retrieval else "stsb"
    plain = {
        "name": "shipped", "method": "simcse", "encoder": "bert-base-uncased", "data": {"train": "wiki", "dev": [dev]},
        "metric": {"name": Queries.metric.name if retrieval else "stsb_dev"},
        "params": {
            "learning_rate": {"float": [5e-6, 1e-4], "log": True}, "batch_size": {"choice": [32, 64, 128, 256, 512]},
            "dropout": {"float": [0.05, 0.3], "step": 0.05},
        },
        "search": {"trials": TRIALS},
        "train": {"max_examples": EVALUATIONS * RUNG, "eval_steps": None, "eval_examples": RUNG},
    }  # fmt: skip
    return load_space(plain)


@dataclass
class Trainer:
    """What trials of one study show: the truth of a world, drawn. Takes the place of `Surrogate` in `Ours`."""

    world: World
    rng: np.random.Generator
    table: Any = field(default_factory=lambda: SimpleNamespace(evaluations=EVALUATIONS, rung=RUNG))

    def __post_init__(self) -> None:
        rng, self.space = self.rng, space(self.world.retrieval)
        self.paper = paper_point(self.space)
        self._at = inputs(self.paper, self.space.params)
        while True:
            self._centre = rng.random(len(self._at))
            if np.linalg.norm(self._centre - self._at) > REACH:
                break
        self.pair_sds = self.world.pair_sds
        self.common = self.pair_sds[0] * rng.standard_normal()
        self._waves = rng.standard_normal((3, 64, len(self._at))) / LENGTH
        self._phases, self._weights = rng.uniform(0, 2 * np.pi, 64), rng.standard_normal((2, 64)) * np.sqrt(2 / 64)
        self._entropy = int(rng.integers(2**32))

    def effect(self, point: Point) -> float:
        """True value of a point, less the baseline's."""
        at = inputs(point, self.space.params)
        near = float(np.clip(2 - 2 * np.linalg.norm(at - self._centre) / REACH, 0, 1)) if self.world.best else 0.0
        fall = FALL * max(0.0, abs(at[0] - self._at[0]) - FLAT)
        return self.world.best * near - (1 - near) * float(fall)

    def curve(self, point: Point, seed: int) -> Floats:
        """(EVALUATIONS,) of one trial, in the metric's unit."""
        own = np.random.default_rng([self._entropy, seed, zlib.crc32(key(point).encode())])
        of_point = np.random.default_rng([self._entropy, zlib.crc32(key(point).encode())])
        of_seed = np.random.default_rng([self._entropy, seed])
        at, world = inputs(point, self.space.params), self.world
        waves = np.cos(self._waves[0] @ at + self._phases) @ self._weights.T
        habit = self.pair_sds[1] * (waves[0] + of_point.standard_normal()) / np.sqrt(2)
        seed_noise = np.sqrt(SEED_SHARED) * of_seed.standard_normal() + np.sqrt(1 - SEED_SHARED) * own.standard_normal()
        level = LEVEL + self.effect(point) + self.common + habit + world.sd * seed_noise
        level += self.pair_sds[2] * own.standard_normal()
        slow = SLOWEST / (1 + np.exp(-2 * waves[1]))
        found: Floats = level - slow * rising() + evaluation_noise(world, own).sum(0)
        return found / 100

    def value(self, point: Point, seed: int) -> float:
        return float(self.curve(point, seed).max())


def rising() -> Floats:
    """(EVALUATIONS,) what of a curve is still to come, from 1 to 0."""
    done = np.arange(1, EVALUATIONS + 1) / EVALUATIONS
    return np.asarray(np.maximum(0.0, 1 - done / LEARNT))


def evaluation_noise(world: World, rng: np.random.Generator, size: tuple[int, ...] = ()) -> Floats:
    """(2, *size, EVALUATIONS) of the model, which fresh pairs show too, and of the pairs."""
    sds = np.array([OF_EVALUATION[0] * world.sd, OF_EVALUATION[1] * world.pair_sds[2]])
    found: Floats = sds.reshape(2, *[1] * (len(size) + 1)) * rng.standard_normal((2, *size, EVALUATIONS))
    return found


@cache
def of_the_best(world: World) -> tuple[float, float]:
    """How far the best of a trial's evaluations lies above its level on its own pairs, and on pairs that picked no
    evaluation."""
    model, pairs = evaluation_noise(world, np.random.default_rng(0), (40_000,))
    shown = model + pairs - SLOWEST / 2 * rising()
    best = shown.argmax(1)[:, None]
    return float(np.take_along_axis(shown, best, 1).mean()), float(np.take_along_axis(model, best, 1).mean())


def table(ledger: Ledger) -> pd.DataFrame:
    """The trials of a journal as `analysis` reads them from MLflow."""
    rows = [
        {
            "point": f"{record.trial.number}", "stage": record.trial.stage, "trial": record.trial.id,
            "stop": record.state if record.state == "completed" else "pruned", "run_id": f"{i}:{record.trial.number}",
            "seed": record.trial.seed, "value": record.best, "baseline": bool(record.trial.baseline),
        }
        for i, record in enumerate(ledger.trials.values())
        if record.best is not None
    ]  # fmt: skip
    return pd.DataFrame(rows)


def study(world: World, number: int, seed: int, root: Path) -> list[dict[str, float]]:
    """One search: a row of outcomes per element of PLACES."""
    rng = np.random.default_rng([seed, zlib.crc32(world.name.encode()), number])
    trainer = Trainer(world, rng)
    settings: dict[str, Any] = {
        "search": {"sampler": world.sampler, "trials": world.trials, "repeats": REPEATS, "baseline": "paper"},
        "pruner": {"kind": "asha"},
    }
    made: list[Ours] = []

    def make() -> Ours:
        surrogate = cast("Surrogate", trainer)
        made.append(Ours(surrogate, settings, 100 * number, 1, root, BUDGET))
        return made[0]

    play(cast("Surrogate", trainer), make, 1, BUDGET)
    made[0].close()
    judge, found = bank(world, int(rng.integers(BANKS))), []
    for places in PLACES:
        ledger = made[0].confirmed(trainer.value, places, CONFIRMATION_TRIALS, f"{places}")
        trials = table(ledger)
        seeds = SeedValues.of(trials, 1.0)
        prior = unknown_metric(seeds.firsts()) if world.retrieval else None  # as `study_prior` has it
        pool = EvaluatedPoints.of(points_table(trials), 1.0)
        found.append(outcome(trainer, ledger, judged(pool, seeds, judge.metric, judge.noise, analyses=1, prior=prior)))
    return found


def outcome(trainer: Trainer, ledger: Ledger, verdict: Verdict) -> dict[str, float]:
    """Shares as 0 or 1, errors in points. bias: of the corrected value against fresh seeds and fresh pairs; held_out:
    the same where the pairs have picked no evaluation either. missed: no point was better to name."""
    points = {f"{r.trial.number}": r.trial.point for r in ledger.trials.values() if r.trial.stage == "search"}
    true, gain = trainer.effect(dict(points[verdict.best])), verdict.gain
    above, held = of_the_best(trainer.world)
    level = LEVEL + true + above
    claimed = gain is not None and gain.significant
    return {
        "false": claimed and true <= 0,
        "right": claimed and true > 0,
        "covered": verdict.low * 100 <= level <= verdict.high * 100,
        "gain_covered": gain.low * 100 <= true <= gain.high * 100 if gain else np.nan,
        "bias": 100 * verdict.expected - trainer.common - level,
        "held_out": 100 * verdict.expected - trainer.common - level + above - held,
        "gain_bias": 100 * gain.value - true if gain else np.nan,
        "naive": 100 * verdict.naive - trainer.common - level,
        "best_found": max(trainer.effect(dict(p)) for p in points.values()),
        "true": true,
        "seeds": verdict.n,
        "tried": verdict.tried,
        "trials": len(ledger.trials),
    }


SHARES_OF = ("false", "right", "covered", "gain_covered")


def summary(cell: str, found: list[dict[str, float]]) -> dict[str, Any]:
    """Means and their standard errors."""
    row: dict[str, Any] = {"cell": cell, "studies": len(found)}
    for name in found[0]:
        values = np.array([one[name] for one in found], dtype=float)
        values = values[np.isfinite(values)]
        row[name], row[f"{name}_se"] = float(values.mean()), float(values.std() / np.sqrt(max(1, len(values))))
    return row


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """Shares in percent, errors in points, each with its standard error."""
    names = (*SHARES_OF, "bias", "held_out", "naive")
    heads = ("false claims", "right claims", "value covered", "gain covered", "bias", "on held-out pairs", "naive")
    lines = [f"| world | studies | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for row in rows:
        cells = [
            f"{100 * row[n]:.1f} ± {100 * row[f'{n}_se']:.1f}"
            if n in SHARES_OF
            else f"{row[n]:+.2f} ± {row[f'{n}_se']:.2f}"
            for n in names
        ]
        lines.append(f"| {row['cell']} | {row['studies']:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command()
@click.option("--studies", default=500, show_default=True, help="of each world")
@click.option("--seed", default=1, show_default=True)
@click.option("--seconds", default=0.0, help="end after so many, all worlds having had as many studies; 0 = no end")
@click.option("--cells", default="", help="regular expression; only worlds whose name it finds")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=None)
def main(studies: int, seed: int, seconds: float, cells: str, out: Path | None) -> None:
    """Run the worlds in turn, a study of each, and write and print the table."""
    import torch

    torch.set_num_threads(1)
    out = out or Path(__file__).parent / "results" / "shipped.json"
    chosen, began = [world for world in worlds() if re.search(cells, world.name)], time.monotonic()
    found: dict[str, list[dict[str, float]]] = {f"{w.name}, {n} at once": [] for w in chosen for n in PLACES}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        for number in range(studies):
            if seconds and time.monotonic() - began > seconds:
                break
            for world in chosen:
                for places, one in zip(PLACES, study(world, number, seed, Path(root)), strict=True):
                    found[f"{world.name}, {places} at once"].append(one)
            if number % 10 == 9:
                rows = [summary(cell, outcomes) for cell, outcomes in found.items()]
                write(out, rows, seed)
    rows = [summary(cell, outcomes) for cell, outcomes in found.items()]
    write(out, rows, seed)
    click.echo(markdown(rows))
    click.echo(f"{time.process_time():.0f} s of processor time")


def write(out: Path, rows: list[dict[str, Any]], seed: int) -> None:
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"seed": seed, "trials": TRIALS, "budget": BUDGET, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
