"""Two simulated searches of one method, on one dev set, each confirmed; and the duel of what they found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from simulate import BANKS, METRIC, Bank, SimulatedStudy, World

from analysis.statistics.league import Duel, compared
from analysis.statistics.pairs import pair_noise
from analysis.statistics.verdict import Verdict, judged

_BANKS: dict[tuple[int, int], Bank] = {}


def simulate_duel(world: World, rng: np.random.Generator, longer: int = 1) -> tuple[Duel, float] | None:
    """The duel and the true difference, in units of the metric. longer: how many times the second's points the first
    search has tried; None if it has not confirmed the best of its first `world.points`."""
    key = world.pairs, int(rng.integers(BANKS))
    bank = _BANKS.setdefault(key, _BANKS.get(key) or Bank(*key))
    studies = [SimulatedStudy(replace(world, points=n * world.points), rng) for n in (longer, 1)]
    shift = studies[0].common - studies[1].common  # the dev set is one
    studies[1].rows = [(p, stage, seed, value + shift, stop) for p, stage, seed, value, stop in studies[1].rows]
    studies[1].common, studies[1].mean = studies[0].common, studies[1].mean + shift
    verdicts: list[Verdict] = []
    for study in studies:
        study.confirm(world.seeds)
        study.rows = [row for row in study.rows if row[0] < world.points]
        if int(study.mean[: world.points].argmax()) not in {row[0] for row in study.rows if row[1] == "confirm"}:
            return None
        verdicts.append(judged(*study.arrays(), METRIC, bank.noise, analyses=1))
    named = [int(verdict.best) for verdict in verdicts]
    half = bank.size // 2  # configurations of the two studies are different models
    sides = enumerate(zip(verdicts, named, strict=True))
    runs = [[f"{16 * i + k}:{half * i + p % half}" for k in range(v.n)] for i, (v, p) in sides]
    between, inside = pair_noise(*runs, METRIC.parts, bank), [v.pairs for v in verdicts]
    assert between is not None
    further = max(between.between - sum(pairs.between for pairs in inside if pairs is not None) / 2, 0.0)
    duel = compared("first", verdicts[0], "second", verdicts[1], further)
    return duel, float(studies[0].truth[named[0]] - studies[1].truth[named[1]]) / 100
