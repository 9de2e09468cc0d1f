"""Simulated studies with known truth, judged by the analysis.

Values are drawn from the model below and written into a table as a search would leave it. Shared with what is judged:
`points_table`, `EvaluatedPoints` and `SeedValues`, which read the table, and `pair_noise`. All amounts are in points
(Spearman x 100).

    value of a trial = LEVEL + effect of its configuration + effect of the dev pairs on it + effect of its seed

The dev pairs' effect has a part shared by all models, one per configuration, one per trial. Their sizes are those of
linear-Gaussian models scored on normal pairs with the error shares 0.9, 0.05, 0.05, measured by brute force on 300 dev
sets of 1,500 pairs x 12 configurations x 6 seeds; they fall with the square root of the pairs. The cosines that the
analysis may ask for are drawn from the same models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.pairs import PairNoise, pair_noise
from analysis.statistics.picked import EvaluatedPoints
from analysis.statistics.seed_noise import SeedValues
from analysis.statistics.verdict import Verdict, judged
from analysis.tables.metric import Metric
from analysis.tables.trials import points_table

Floats = NDArray[np.float64]
METRIC = Metric("stsb_dev", ("stsb_dev",))
LEVEL = 75.0
SHARES = (0.9, 0.05, 0.05)  # of a model's error on a pair: all models', all seeds' of one configuration, its own
COMMON_SD, CONFIGURATION_SD, OWN_SD = 1.196, 0.273, 0.277  # of the score at 1,500 pairs, from those shares
SEED_SHARED = 0.2  # share of the seed's variance that is the seed's own, whatever the configuration
COLLAPSE, DEPTH = 0.04, (3.0, 7.0)  # share of trials that collapse, and by how much
RUNG_BELOW, RUNG_SD = 2.0, 0.3  # a value at the pruner's rung: below the final one, with noise of its own


@dataclass(frozen=True)
class World:
    """What is true, and how it is searched.

    points: configurations, the first is the baseline. best: by how much the best is better than the baseline. shape:
    "one" (other points equal the baseline) or "spread" (other points fall off below it; `best` shifts the top).
    sd: of a trial over seeds; noise: "equal", "unequal" (from configuration to configuration by a factor exp(N(0,
    0.5))), "tails" (Student's t with 5 degrees of freedom, and collapses). pairs: of the dev set.
    repeats: seeds per configuration in the search. prune: share stopped at a rung. adaptive: half of the proposals are
    near the best so far, in effect and in their likeness to the dev set.
    confirm: "no", "fixed" (the top 3 and the baseline on `seeds` seeds), "race" (a clearly worse one is given up),
    "adaptive" (as many trials in all, each to the one that could still be the best). analyses: most interim
    analyses; after one without a claim, two more seeds and the next.
    """

    points: int = 30
    best: float = 0.0
    shape: str = "one"
    sd: float = 0.5
    noise: str = "equal"
    pairs: int = 1500
    repeats: int = 1
    prune: float = 0.0
    adaptive: bool = False
    confirm: str = "fixed"
    seeds: int = 5
    analyses: int = 1


@dataclass(frozen=True)
class Outcome:
    """What became of one study. Errors and values in points, larger is better; NaN where there was nothing to say.

    claimed, false: a significant gain; one of a configuration that is no better than the baseline. right: one of the
    best configuration. covers, covers_gain: the interval held the truth. error, naive: of the corrected and of the
    best search value. p_best, is_best: among those that could be named, stated and true (ties share).
    gain_error: of the corrected difference to the baseline.
    """

    claimed: bool
    false: bool
    right: bool
    named_best: bool
    covers: bool
    covers_gain: float
    error: float
    naive: float
    gain_error: float
    p_best: float
    is_best: float
    verdict: Verdict = field(repr=False)


@dataclass
class SimulatedStudy:
    """A study as it grows."""

    world: World
    rng: np.random.Generator
    effects: Floats = field(init=False)
    habits: Floats = field(init=False)
    sds: Floats = field(init=False)
    rows: list[tuple[int, str, int, float, str]] = field(default_factory=list)  # point, stage, seed, value, stop

    def __post_init__(self) -> None:
        w, rng = self.world, self.rng
        scale = np.sqrt(1500 / w.pairs)
        self.common = COMMON_SD * scale * rng.standard_normal()
        self.habits = CONFIGURATION_SD * scale * rng.standard_normal(w.points)
        self.own_sd = OWN_SD * scale
        self.sds = np.full(w.points, w.sd)
        if w.noise == "unequal":
            self.sds = self.sds * np.exp(0.5 * rng.standard_normal(w.points))
        self.effects = np.zeros(w.points)
        if w.shape == "spread":
            self.effects = np.minimum(0.0, 0.5 - rng.exponential(1.5, w.points)) + w.best
            self.effects[0] = 0.0
        elif w.best:
            self.effects[1 + int(rng.integers(w.points - 1))] = w.best
        self.seed_luck: dict[int, float] = {}
        if w.adaptive:
            self._search_adaptively()
        else:
            self.first = np.array([self.train(p, "search", 0) for p in range(w.points)])
        for p in range(w.points):
            for repeat in range(1, w.repeats):
                self.train(p, "search", repeat)
        if w.prune:
            self._prune()
        whole = [(row[0], row[3]) for row in self.rows if row[4] == "completed"]
        code, values = (np.array(column) for column in zip(*whole, strict=True))
        count = np.bincount(code, minlength=w.points)
        self.mean = np.where(count > 0, np.bincount(code, values, w.points) / np.maximum(count, 1), -np.inf)

    @property
    def truth(self) -> Floats:
        """(points,) mean over seeds and dev sets."""
        shift = COLLAPSE * sum(DEPTH) / 2 if self.world.noise == "tails" else 0.0
        return LEVEL + self.effects - shift

    def train(self, point: int, stage: str, seed: int) -> float:
        w, rng = self.world, self.rng
        if seed not in self.seed_luck:
            self.seed_luck[seed] = rng.standard_normal()
        draw = rng.standard_t(5) / np.sqrt(5 / 3) if w.noise == "tails" else rng.standard_normal()
        luck = self.sds[point] * (np.sqrt(SEED_SHARED) * self.seed_luck[seed] + np.sqrt(1 - SEED_SHARED) * draw)
        if w.noise == "tails" and rng.random() < COLLAPSE:
            luck -= rng.uniform(*DEPTH)
        own = self.own_sd * rng.standard_normal()
        value = LEVEL + self.effects[point] + self.common + self.habits[point] + luck + own
        self.rows.append((point, stage, seed, value, "completed"))
        return float(value)

    def _search_adaptively(self) -> None:
        w, rng = self.world, self.rng
        values = np.empty(w.points)
        special = int(np.argmax(self.effects)) if w.shape == "one" and w.best else -1
        for p in range(w.points):
            if p >= 8 and rng.random() < 0.5:
                near = int(values[:p].argmax())
                self.habits[p] = 0.7 * self.habits[near] + np.sqrt(1 - 0.49) * self.habits[p]
                if p != special and w.shape == "spread":
                    self.effects[p] = min(self.effects[near] + 0.2 * rng.standard_normal(), w.best + 0.3)
            values[p] = self.train(p, "search", 0)
        self.first = values

    def _prune(self) -> None:
        reached = self.first - RUNG_BELOW + RUNG_SD * self.rng.standard_normal(self.world.points)
        worst = [p for p in np.argsort(reached)[: int(self.world.prune * self.world.points)] if p != 0]
        kept = [row for row in self.rows if row[0] not in worst]
        self.rows = kept + [(int(p), "search", 0, float(reached[p]), "pruned") for p in worst]

    def confirm(self, upto: int) -> None:
        """Fresh seeds up to `upto` a point."""
        w = self.world
        top = [int(p) for p in np.argsort(-self.mean)[:3]]
        chosen = list(dict.fromkeys([*top, 0]))
        start = w.repeats
        done = {p: [r[3] for r in self.rows if r[0] == p and r[1] == "confirm"] for p in chosen}

        def run(p: int) -> None:
            done[p].append(self.train(p, "confirm", start + len(done[p])))

        if w.confirm == "fixed":
            for p in chosen:
                while len(done[p]) < upto:
                    run(p)
        elif w.confirm == "race":
            out: set[int] = set()
            for n in range(upto):
                for p in chosen:
                    if p not in out and len(done[p]) <= n:
                        run(p)
                lead = max(chosen, key=lambda p: np.mean(done[p]))
                out = {p for p in chosen if p not in (0, lead) and n >= 2 and _clearly_worse(done[p], done[lead])}
        else:
            for p in chosen:
                while len(done[p]) < 2:
                    run(p)
            while sum(map(len, done.values())) < upto * len(chosen):
                hopeful = [p for p in chosen if p]
                p = max(hopeful, key=lambda p: np.mean(done[p]) + w.sd / np.sqrt(len(done[p])))
                run(p)
                if len(done[0]) < len(done[p]):
                    run(0)

    def table(self) -> pd.DataFrame:
        points, stages, seeds, values, stops = zip(*self.rows, strict=True)
        ids = np.array([f"{i}:{p}" for i, p in enumerate(points)], dtype=object)
        columns = {"point": [f"{p}" for p in points], "stage": stages, "stop": stops, "run_id": ids, "trial": ids}
        texts = {name: np.array(column, dtype=object) for name, column in columns.items()}
        numbers = {"seed": np.array(seeds), "value": np.array(values) / 100, "baseline": np.array(points) == 0}
        return pd.DataFrame({**texts, **numbers})

    def arrays(self) -> tuple[EvaluatedPoints, SeedValues]:
        """What `table` becomes inside the analysis."""
        trials = self.table()
        return EvaluatedPoints.of(points_table(trials), METRIC.sign), SeedValues.of(trials, METRIC.sign)


def _clearly_worse(values: list[float], leader: list[float]) -> bool:
    gaps = np.asarray(leader[: len(values)]) - np.asarray(values)[: len(leader)]
    return bool(gaps.mean() > 3.2 * gaps.std(ddof=1) / np.sqrt(len(gaps)))


class Bank:
    """Cosines of the models on one dev set. What the analysis estimates from few pairs differs from dev set to dev set
    (by 22 % of the variance at 400), so that studies take turns among BANKS of them."""

    metric = METRIC

    def __init__(self, pairs: int, number: int = 0, size: int = 64) -> None:
        rng = np.random.default_rng([pairs, number])
        self.size = size
        self._noise: dict[tuple[tuple[str, ...], tuple[str, ...]], PairNoise | None] = {}
        self.gold = rng.standard_normal(pairs)
        r = 2 * np.sin(np.pi / 6 * LEVEL / 100)  # Pearson's r of a normal pair whose Spearman is LEVEL
        base = r / np.sqrt(1 - r**2) * self.gold + np.sqrt(SHARES[0]) * rng.standard_normal(pairs)
        self.base = base
        self.habits = np.sqrt(SHARES[1]) * rng.standard_normal((size, pairs))
        self.own = np.sqrt(SHARES[2]) * rng.standard_normal((size, pairs))

    def noise(self, first: Sequence[str], second: Sequence[str]) -> PairNoise | None:
        """The pair noise of two points, computed once for each number of seeds and a few likenesses."""

        def alike(runs: Sequence[str], of: int) -> tuple[str, ...]:
            return tuple(f"{4 * of + i}:{int(runs[0].split(':')[1]) % 3 + 3 * of}" for i in range(len(runs)))

        key = (alike(first, 0), alike(second, 8))
        if key not in self._noise:
            self._noise[key] = pair_noise(*key, self.metric.parts, self)
        return self._noise[key]

    def __call__(self, run_id: str) -> dict[str, NDArray[np.float32]]:
        trial, point = map(int, run_id.split(":"))
        cosines = self.base + self.habits[point % self.size] + self.own[trial % self.size]
        return {"stsb_dev": cosines.astype(np.float32), "stsb_gold": self.gold.astype(np.float32)}


BANKS = 32
_BANKS: dict[tuple[int, int], Bank] = {}


def simulate(world: World, rng: np.random.Generator) -> Outcome:
    """One study of this world, judged after its last interim analysis."""
    study = SimulatedStudy(world, rng)
    drawn = world.pairs, int(rng.integers(BANKS))
    if drawn not in _BANKS:
        _BANKS[drawn] = Bank(*drawn)
    bank = _BANKS[drawn]
    analyses = world.analyses if world.confirm != "no" else 1
    for analysis in range(1, analyses + 1):
        if world.confirm != "no":
            study.confirm(world.seeds + 2 * (analysis - 1))
        verdict = judged(*study.arrays(), METRIC, bank.noise, analyses=analysis)
        if verdict.gain is not None and verdict.gain.significant:
            break
    return _outcome(study, verdict)


def _outcome(study: SimulatedStudy, verdict: Verdict) -> Outcome:
    truth, named, gain = study.truth, int(verdict.best), verdict.gain
    claimed = gain is not None and gain.significant
    best = truth[named] >= truth.max() - 1e-9
    confirmed = sorted({row[0] for row in study.rows if row[1] == "confirm"})
    among = confirmed or sorted({row[0] for row in study.rows if row[4] == "completed"})
    search = [row for row in study.rows if row[1] == "search" and row[4] == "completed"]
    lucky = max(search, key=lambda row: row[3])

    def shares(those: list[int]) -> float:
        top = [p for p in those if truth[p] >= truth[those].max() - 1e-9]
        return (named in top) / len(top)

    return Outcome(
        claimed=claimed,
        false=claimed and truth[named] <= truth[0],
        right=claimed and best and truth[named] > truth[0],
        named_best=bool(best),
        covers=bool(verdict.low * 100 <= truth[named] <= verdict.high * 100),
        covers_gain=float(gain.low * 100 <= truth[named] - truth[0] <= gain.high * 100) if gain else np.nan,
        error=verdict.expected * 100 - truth[named] - study.common,
        naive=lucky[3] - truth[lucky[0]] - study.common,
        gain_error=gain.value * 100 - (truth[named] - truth[0]) if gain else np.nan,
        p_best=verdict.p_best,
        is_best=shares(among),
        verdict=verdict,
    )
