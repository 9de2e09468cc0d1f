"""Simulated studies: every trial is a model that scores the same dev pairs, so that noise arises as it does in life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.rank import Metric
from analysis.tables import points_table
from analysis.verdict import Verdict, judge

METRIC = Metric("stsb_dev", ("stsb_dev",))
LEVEL = 0.75  # population Spearman of an average model
# Shares of a model's error on a pair that all models make, that all seeds of one configuration make, and its own.
COMMON, CONFIGURATION, OWN = 0.9, 0.05, 0.05
RUNG_BELOW, RUNG_SD = 0.02, 0.003  # a value at the pruner's rung: below the final one, with noise of its own


@dataclass(frozen=True)
class Simulated:
    """One study.

    truth: (points,) population Spearman of each configuration, mean over seeds. naive: value of the search's best trial
    minus its true one. shift: how much the dev set at hand favours all models alike; its mean over studies is 0, and
    subtracting it from an error takes most of the Monte Carlo noise out of the error's mean. confirmed: configurations.
    """

    verdict: Verdict
    truth: np.ndarray
    naive: float
    shift: float
    confirmed: frozenset[int]

    @property
    def named(self) -> int:
        return int(self.verdict.best)

    @property
    def error(self) -> float:
        """Of the corrected value against the true value of the configuration named, less `shift`."""
        return self.verdict.expected - float(self.truth[self.named]) - self.shift


def simulate(
    effects: Sequence[float],
    rng: np.random.Generator,
    *,
    confirm: int = 0,
    top: int = 5,
    seed_sd: float = 0.005,
    pairs: int = 1500,
    prune: float = 0.0,
) -> Simulated:
    """A search of one trial per configuration, judged.

    Args:
        effects: true Spearman of each configuration minus LEVEL; configuration 0 is the baseline.
        confirm: fresh seeds for the `top` best and the baseline, 0 = none.
        seed_sd: of the population Spearman over seeds; the choice of pairs adds to it.
        prune: share of the configurations that is stopped at a rung, where they have their luck with the seed already:
            those that look worst there. What is stored of them is what they had reached.
    """
    effects = np.asarray(effects, dtype=float)
    n = len(effects)
    gold = rng.standard_normal(pairs)
    shared = np.sqrt(COMMON) * rng.standard_normal(pairs)
    habits = np.sqrt(CONFIGURATION) * rng.standard_normal((n, pairs))
    gold_ranks = gold.argsort().argsort()
    cosines: dict[str, np.ndarray] = {}
    shifts: list[float] = []

    def train(points: np.ndarray, stage: str) -> pd.DataFrame:
        quality = LEVEL + effects[points] + seed_sd * rng.standard_normal(len(points))
        r = 2 * np.sin(np.pi / 6 * quality)  # Pearson's r of a normal pair whose Spearman is `quality`
        signal = r / np.sqrt(1 - r**2)
        own = np.sqrt(OWN) * rng.standard_normal((len(points), pairs))
        scores = signal[:, None] * gold + shared + habits[points] + own
        ranks = scores.argsort(axis=1).argsort(axis=1)
        value = 1 - 6 * ((ranks - gold_ranks) ** 2).sum(axis=1) / (pairs * (pairs**2 - 1))
        ids = [f"{stage}{i}" for i in range(len(points))]
        cosines.update(zip(ids, scores, strict=True))
        shifts.append(float(np.mean(value - quality)))
        return pd.DataFrame({"run_id": ids, "trial": ids, "point": points.astype(str), "stage": stage, "value": value})

    trials = train(np.arange(n), "search")
    trials["stop"] = "completed"
    parameters = {f"params.p{k}": rng.random(n) for k in range(3)}
    parameters["params.p0"] = effects + 1e-9 * parameters["params.p0"]  # near in p0 is near in value
    if prune:
        reached = trials["value"] - RUNG_BELOW + RUNG_SD * rng.standard_normal(n)
        worst = reached.nsmallest(int(prune * n)).index.difference([0])
        trials.loc[worst, "stop"], trials.loc[worst, "value"] = "pruned", reached[worst]
    naive = int(trials["value"].idxmax())
    naive_error = float(trials["value"].max() - LEVEL - effects[naive])
    if confirm:
        chosen = np.union1d(trials["value"].nlargest(top).index, [0])
        trials = pd.concat([trials, train(np.repeat(chosen, confirm), "confirm")], ignore_index=True)
    trials["stop"] = trials["stop"].fillna("completed")
    configuration = trials["point"].astype(int)
    trials["baseline"] = configuration == 0
    trials["seed"] = np.arange(len(trials))
    for column in ("examples", "seconds"):
        trials[column] = 1.0
    for column in ("folder", "reason"):
        trials[column] = ""
    for name, values in parameters.items():
        trials[name] = values[configuration]

    def similarities(run_id: str) -> dict[str, np.ndarray]:
        return {"stsb_dev": cosines[run_id].astype(np.float32), "stsb_gold": gold.astype(np.float32)}

    verdict = judge(trials, points_table(trials), METRIC, ("p0", "p1", "p2"), similarities, rng)
    confirmed = frozenset(configuration[trials["stage"] == "confirm"])
    return Simulated(verdict, LEVEL + effects, naive_error - shifts[0], shifts[0], confirmed)
