"""Learning curves of any point of a table's space: a Gaussian process over the recorded ones, and seed noise."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.curves.tables import HERE, space_of
from search.space import Space
from search.study.samplers import Point, key, random_point

Floats = NDArray[np.float64]
COMPONENTS = 4  # principal components of the curves that are modelled; the rest is left out
CANDIDATES = 20_000  # random points; the best true value is the largest of theirs
SEED_DRAWS = 64  # over which a true value is a mean
ALIKE = 4  # the recorded points most like a trial's, one of which lends it its deviation
APART = 0.15  # of the unit cube that features span


@dataclass(frozen=True)
class Table:
    """Recorded trials. curves: (n, evaluations), one row a trial; seconds: of a full-length trial."""

    space: Space
    points: list[Point]
    seeds: list[int]
    curves: Floats
    held_out: Floats
    seconds: Floats
    rung: int

    @property
    def evaluations(self) -> int:
        return int(self.curves.shape[1])

    def by_point(self) -> list[list[int]]:
        """The rows of each point by seed; points in the order in which they were first recorded."""
        found: dict[str, list[int]] = {}
        for i, point in enumerate(self.points):
            found.setdefault(key(point), []).append(i)
        return [sorted(rows, key=lambda i: self.seeds[i]) for rows in found.values()]


def load_table(name: str) -> Table:
    """A table of `benchmarks/curves`."""
    return table_of(json.loads(gzip.decompress((HERE / f"{name}.json.gz").read_bytes()))["trials"], space_of(name))


def table_of(trials: list[dict[str, Any]], space: Space) -> Table:
    """Recorded trials (`record`) as a table."""
    rung = int(space.base["eval_examples"])
    count = int(space.base["max_examples"]) // rung
    trials = [t for t in trials if len(t["curve"]) >= count - 1]  # collapsed ones have no curve to learn from
    curves, held_out = np.zeros((len(trials), count)), np.zeros((len(trials), count))
    for i, trial in enumerate(trials):
        examples, value, other, _ = np.array(trial["curve"]).T
        curves[i] = np.interp(rung * np.arange(1, count + 1), examples, value)
        held_out[i] = np.interp(rung * np.arange(1, count + 1), examples, other)
    seconds = np.array([t["curve"][-1][3] for t in trials])
    return Table(space, [t["point"] for t in trials], [t["seed"] for t in trials], curves, held_out, seconds, rung)


class Surrogate:
    """What a trial of any point would have shown.

    The mean curve is a Gaussian process of the hyperparameters (one length scale each), fitted by marginal likelihood
    on the principal components of the recorded mean curves; a trial adds what the recorded seeds of a point that is
    like it, by curve and by hyperparameters, differ by: seeds part where curves fall, settings that collapse have many
    times the noise of good ones, and low learning rates little. A seed is a random mixture of the recorded ones, the
    same for all points: the same seed does the same to similar settings (docs/development/search_quality.md).

    Args: seed_sd: where the table has one seed only, what a seed moves a whole curve by, a standard deviation.
    """

    def __init__(self, table: Table, seed_sd: float = 0.0) -> None:
        self.table, self.space, self._seed_sd = table, table.space, seed_sd
        groups = table.by_point()
        self._points = [table.points[rows[0]] for rows in groups]
        means = np.array([table.curves[rows].mean(0) for rows in groups])
        self._repeated = [g for g, rows in enumerate(groups) if len(rows) > 1]
        self._noise = [
            (table.curves[groups[g]] - means[g]) * np.sqrt(2 * len(groups[g]) / (len(groups[g]) - 1))
            for g in self._repeated
        ]  # (seeds, evaluations) of each of these points; even mixtures of theirs have the variance of a seed
        self._seeds = [np.array([table.seeds[i] for i in groups[g]]) for g in self._repeated]
        self._inputs = np.array([self.features(point) for point in self._points])
        self._curves = means
        self._mean = means.mean(0)
        _, _, axes = np.linalg.svd(means - self._mean, full_matrices=False)
        self._axes = axes[:COMPONENTS]
        scores = (means - self._mean) @ self._axes.T
        self._models = [_GaussianProcess(self._inputs, column) for column in scores.T]

    def features(self, point: Point) -> Floats:
        """Numbers in [0, 1] of a point: positions in ranges, one-hot choices, and 0 where a parameter is inactive."""
        found: list[float] = []
        for name, param in self.space.params.items():
            value = point.get(name)
            if param.values is not None:
                if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in param.values):
                    ranks = list(param.values)
                    found.append(0.0 if value is None else ranks.index(value) / max(1, len(ranks) - 1))
                else:
                    found += [float(value == v) for v in param.values]
            else:
                low, high = float(param.low or 0), float(param.high or 1)
                scale = np.log if param.log else float
                found.append(0.0 if value is None else float((scale(value) - scale(low)) / (scale(high) - scale(low))))
            if param.when:
                found.append(float(value is not None))
        return np.array(found)

    def mean_curves(self, points: list[Point]) -> Floats:
        """(n, evaluations): what trials of these points show on average."""
        inputs = np.array([self.features(point) for point in points])
        found: Floats = self._mean + np.stack([model.predict(inputs) for model in self._models], 1) @ self._axes
        return found

    def curve(self, point: Point, seed: int) -> Floats:
        """(evaluations,) of one trial."""
        mean: Floats = self.mean_curves([point])[0]
        draw = np.random.default_rng([seed, *(int(c) for c in key(point).encode()[:200])])
        if not self._noise:
            return mean + self._seed_sd * draw.standard_normal()
        alike = self._alike(mean, self.features(point))
        lender = alike[draw.integers(len(alike))]
        moved: Floats = mean + self._shares(np.random.default_rng(seed))[self._seeds[lender]] @ self._noise[lender]
        return moved

    def _shares(self, rng: np.random.Generator) -> Floats:
        """A seed's shares of the recorded ones. None is below 0: what falls under one does not soar under another."""
        count = max(self.table.seeds) + 1
        return rng.dirichlet([1 / count] * count)

    def _alike(self, curve: Floats, inputs: Floats) -> NDArray[np.intp]:
        """The points with several seeds that are nearest to this one, by mean curve and by hyperparameters."""
        apart = ((self._curves[self._repeated] - curve) ** 2).sum(1)
        away = (((self._inputs[self._repeated] - inputs) / self._models[0].sizes) ** 2).sum(1)
        return np.argsort(_ranks(apart) + _ranks(away), kind="stable")[:ALIKE]

    def true_value(self, point: Point) -> float:
        """Mean over seeds of the best evaluation of a trial of this point."""
        return float(self._true_values([point])[0])

    def _true_values(self, points: list[Point]) -> Floats:
        """(n,)"""
        means = self.mean_curves(points)
        if not self._noise:
            return np.asarray(means.max(1))
        alike = [self._alike(mean, self.features(point)) for mean, point in zip(means, points, strict=True)]
        return np.array([(mean + self._moves[near]).max(-1).mean() for mean, near in zip(means, alike, strict=True)])

    @cached_property
    def _moves(self) -> Floats:
        """(points with several seeds, draws of a seed, evaluations): what these lend; the mean over draws is 0."""
        rng = np.random.default_rng(0)
        drawn = [self._shares(rng) for _ in range(SEED_DRAWS)]
        shares = np.array([np.roll(one, turn) for one in drawn for turn in range(len(one))])
        return np.array([shares[:, seeds] @ noise for seeds, noise in zip(self._seeds, self._noise, strict=True)])

    @cached_property
    def _candidates(self) -> list[Point]:
        rng = np.random.default_rng(0)
        return [random_point(self.space, rng) for _ in range(CANDIDATES)] + self._points

    @cached_property
    def _predicted(self) -> Floats:
        return self._true_values(self._candidates)

    @property
    def optimum(self) -> float:
        """The best true value there is, as far as random points and the recorded ones show."""
        return float(self._predicted.max())

    def predicted_best(self, count: int) -> list[Point]:
        """The points of the best true values, `APART` from each other and from recorded ones (distance of features)."""
        taken, found = list(self._inputs), []
        for i in np.argsort(-self._predicted):
            point = self._candidates[i]
            inputs = self.features(point)
            if min(float(np.linalg.norm(inputs - other)) for other in taken) >= APART:
                taken.append(inputs)
                found.append(point)
            if len(found) == count:
                break
        return found

    def left_out(self) -> dict[str, float]:
        """How well a recorded point's best value is predicted from all others: R2, rank correlation, error (points)."""
        scores = np.array([[model.without(i) for model in self._models] for i in range(len(self._points))])
        guessed, real = (self._mean + scores @ self._axes).max(1), self._curves.max(1)
        errors = guessed - real
        ranks = [_ranks(guessed), _ranks(real)]
        best = int(real.argmax())
        seeds = [self.table.curves[rows].max(1).var(ddof=1) for rows in self.table.by_point() if len(rows) > 1] or [0.0]
        near = self._alike(self._curves[best], self._inputs[best]) if self._noise else [0]
        return {
            "points": float(len(real)),
            "r2": float(1 - (errors**2).sum() / ((real - real.mean()) ** 2).sum()),
            "rank correlation": float(np.corrcoef(ranks[0], ranks[1])[0, 1]),
            "error, points": float(100 * np.sqrt((errors**2).mean())),
            "seed sd, points": float(100 * np.sqrt(np.mean(seeds))),
            "seed sd of the best, points": float(100 * np.sqrt(np.mean([seeds[i] for i in near]))),
            "spread, points": float(100 * real.std()),
        }


def _ranks(values: Floats) -> NDArray[np.intp]:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


class _GaussianProcess:
    """Squared-exponential kernel, a length scale per input, noise; zero mean after centring."""

    def __init__(self, inputs: Floats, outputs: Floats) -> None:
        self._inputs, self._centre, self._scale = inputs, outputs.mean(), outputs.std() + 1e-12
        self._outputs = (outputs - self._centre) / self._scale
        dims = inputs.shape[1]
        starts = [np.r_[np.log(np.full(dims, size)), np.log(noise)] for size in (0.5, 1.5) for noise in (0.05,)]
        bounds = [(np.log(0.05), np.log(20.0))] * dims + [(np.log(1e-3), np.log(1.0))]
        few = {"maxiter": 30}
        fits = [minimize(self._loss, start, bounds=bounds, method="L-BFGS-B", options=few) for start in starts]
        self._set(min(fits, key=lambda fit: float(fit.fun)).x)

    def predict(self, inputs: Floats) -> Floats:
        found: Floats = self._centre + self._scale * (self._kernel(inputs, self._inputs) @ self._weights)
        return found

    def without(self, i: int) -> float:
        """The prediction at training input i from all others (Rasmussen and Williams 2006, eq. 5.12)."""
        return float(self._centre + self._scale * (self._outputs[i] - self._weights[i] / self._inverse[i, i]))

    def _kernel(self, a: Floats, b: Floats) -> Floats:
        a, b = a / self.sizes, b / self.sizes
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        return np.asarray(np.exp(-0.5 * np.maximum(squares, 0)))

    def _set(self, theta: Floats) -> None:
        self.sizes = np.exp(theta[:-1])
        full = self._kernel(self._inputs, self._inputs) + np.exp(theta[-1]) * np.eye(len(self._inputs))
        self._inverse = np.linalg.inv(full)
        self._weights = self._inverse @ self._outputs
        self._determinant = float(np.linalg.slogdet(full)[1])

    def _loss(self, theta: Floats) -> float:
        self._set(theta)
        prior = 0.05 * float((theta[:-1] ** 2).sum())  # length scales near the range of an input
        return 0.5 * float(self._outputs @ self._weights) + 0.5 * self._determinant + prior


def summary(surrogate: Surrogate) -> dict[str, Any]:
    """What a table holds, and how far its surrogate may be trusted."""
    table = surrogate.table
    return {"trials": len(table.seeds), "seconds a trial": float(table.seconds.mean()), **surrogate.left_out()}
