"""What the verdict claims, on studies whose truth is known: false claims, power, coverage, bias, probabilities.

    python -m benchmarks.calibration --studies 1000 --seed 1 --out benchmarks/results/calibration.jsonl

Every cell is one world of tests/analysis/simulate.py; a cell's studies depend on the seed and on the cell alone. Cells
that the file has with as many studies are not run again, so that the grid can be run in pieces (`--cells` takes a
regular expression) and by several processes. At the end: the table of all that is in the file, which
docs/development/statistics.md sums up.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "analysis"))
from simulate import Outcome, World, simulate  # type: ignore[import-not-found]  # of the tests, found by path
from simulate_duel import simulate_duel  # type: ignore[import-not-found]

MEANS = ("claimed", "false", "right", "named_best", "covers", "covers_gain", "error", "naive", "gain_error")
DECILES = 10


def worlds() -> list[World]:
    """The grid: what must not go wrong first."""
    plain = World()
    points, sds = (10, 30, 100), (0.2, 0.5, 1.0, 1.5)
    noises = ("unequal", "tails")
    cells = [replace(plain, points=n, sd=sd) for n, sd in product(points, sds)]
    cells += [replace(plain, points=n, noise=noise) for n, noise in product(points, noises)]
    cells += [replace(plain, analyses=6, sd=sd) for sd in sds] + [
        replace(plain, analyses=6, noise=noise) for noise in noises
    ]
    cells += [replace(plain, analyses=6, points=n, sd=1.5) for n in (10, 100)]
    cells += [replace(plain, confirm=how, sd=sd) for how, sd in product(("race", "adaptive"), (0.5, 1.5))]
    cells += [replace(plain, confirm="adaptive", analyses=6, sd=sd) for sd in (0.5, 1.5)]
    cells += [replace(plain, pairs=pairs, sd=sd) for pairs, sd in product((400, 6000), (0.2, 1.0))]
    cells += [replace(plain, confirm="no", points=n, sd=sd) for n, sd in product(points, sds)]
    cells += [replace(plain, confirm="no", noise=noise) for noise in noises]
    for changes in ({"prune": 0.5}, {"repeats": 3}, {"adaptive": True}, {"repeats": 3, "noise": "unequal"}):
        cells += [replace(plain, confirm=how, **changes) for how in ("no", "fixed")]  # type: ignore[arg-type]
    cells += [replace(plain, shape="spread", adaptive=a, sd=sd) for a, sd in product((False, True), (0.5, 1.5))]
    cells += [replace(plain, points=n, sd=sd, best=best) for n, sd, best in product(points, sds, (0.5, 1.0, 2.0))]
    for best in (0.5, 1.0, 2.0):
        cells += [replace(plain, points=n, noise=noise, best=best) for n, noise in product((30,), noises)]
        cells += [replace(plain, analyses=6, best=best), replace(plain, confirm="adaptive", best=best)]
        cells += [replace(plain, confirm="race", best=best), replace(plain, confirm="no", best=best)]
        cells += [replace(plain, pairs=pairs, best=best) for pairs in (400, 6000)]
        cells += [replace(plain, prune=0.5, best=best), replace(plain, repeats=3, best=best)]
        cells += [replace(plain, confirm="no", repeats=3, best=best), replace(plain, adaptive=True, best=best)]
        cells += [replace(plain, shape="spread", adaptive=a, best=best) for a in (False, True)]
        cells += [replace(plain, shape="spread", confirm="no", best=best)]
    return cells


def name(world: World) -> str:
    """What sets a cell apart from the plain one."""
    parts = [f"{world.points} points", f"sd {world.sd:g}" if world.noise == "equal" else f"noise {world.noise}"]
    parts.append(f"{world.best:+g} {world.shape}" if world.best or world.shape != "one" else "null")
    if world.pairs != World.pairs:
        parts.append(f"{world.pairs} pairs")
    parts += [f"prune {world.prune:g}"] if world.prune else []
    parts += [f"repeats {world.repeats}"] if world.repeats > 1 else []
    parts += ["adaptive sampler"] if world.adaptive else []
    parts.append(f"confirm {world.confirm}")
    parts += [f"{world.analyses} analyses"] if world.analyses > 1 else []
    return ", ".join(parts)


def measure(world: World, studies: int, seed: int) -> dict[str, Any]:
    """One cell."""
    rng = np.random.default_rng([seed, zlib.crc32(name(world).encode())])
    found = [simulate(world, rng) for _ in range(studies)]
    row: dict[str, Any] = {"cell": name(world), "studies": studies, "seed": seed}
    for what in MEANS:
        values = np.array([getattr(outcome, what) for outcome in found], dtype=float)
        row[what] = float(np.nanmean(values)) if np.isfinite(values).any() else None
    errors = np.array([outcome.error for outcome in found])
    row["error_se"] = float(errors.std() / np.sqrt(studies))
    row["isolated_above"] = float(np.mean([outcome.verdict.expected > outcome.verdict.value for outcome in found]))
    row["visible"] = float(np.median([o.verdict.power.visible * 100 for o in found if o.verdict.power] or [np.nan]))
    row["of_candidates"] = deciles(found, "p_best", "is_best")
    return row


def deciles(found: Iterable[Outcome], stated: str, true: str) -> list[list[float]]:
    """Per decile of the stated probability: studies, sum stated, sum true."""
    table = np.zeros((DECILES, 3))
    for outcome in found:
        p = getattr(outcome, stated)
        table[min(int(p * DECILES), DECILES - 1)] += (1, p, getattr(outcome, true))
    return [[float(v) for v in row] for row in table]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown: shares in percent, errors in points."""
    lines = [
        "| world | studies | false claims | right claims | best named | value covered | gain covered | bias | naive |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    lines += [
        f"| {row['cell']} | {row['studies']:,} | {share(row['false'])} | {share(row['right'])} | "
        f"{share(row['named_best']) if 'null' not in row['cell'] else ''} | {share(row['covers'])} | "
        f"{share(row['covers_gain'])} | {row['error']:+.2f} | {row['naive']:+.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def calibration(rows: Sequence[dict[str, Any]], which: str) -> str:
    """Stated and true probability per decile over all cells."""
    total = np.sum([row[which] for row in rows], axis=0)
    lines = ["| stated | studies | true |", "|---|---|---|"]
    lines += [f"| {p / n:.2f} | {n:,.0f} | {t / n:.2f} |" for n, p, t in total if n]
    return "\n".join(lines)


def confirmed_duels(count: int, seed: int) -> str:
    """Duels of what two searches of one method found, confirmed: how often significant, how often of the worse one."""
    plain, lines = World(points=10, seeds=3), []
    cells = [replace(plain, points=n) for n in (5, 10, 30)] + [replace(plain, sd=sd) for sd in (0.2, 1.5)]
    cells += [replace(plain, noise=noise) for noise in ("unequal", "tails")] + [replace(plain, pairs=400)]
    cells += [replace(plain, shape="spread", points=n) for n in (5, 10, 30)]
    for world, longer in [*((cell, 1) for cell in cells), (replace(plain, shape="spread"), 2)]:
        rng = np.random.default_rng([seed, zlib.crc32(name(world).encode())])
        found = [one for one in (simulate_duel(world, rng, longer) for _ in range(count)) if one]
        claimed = np.array([duel.p_value < 0.05 for duel, _ in found])
        wrong = np.array([duel.difference * truth <= 0 for duel, truth in found])
        covers = np.mean([duel.low <= truth <= duel.high for duel, truth in found])
        half = 50 * np.mean([duel.high - duel.low for duel, _ in found])
        what = f"{longer * world.points} against {name(world)}, {world.seeds} seeds"
        shares = (100 * np.mean(claimed), 100 * np.mean(claimed & wrong), 100 * covers)
        said = "significant {:.1f} %, of the worse {:.1f} %, covered {:.1f} %".format(*shares)
        lines.append(f"{what}: {said}, +-{half:.2f}, n {len(found):,}")
    return "\n".join(lines)


@click.command()
@click.option("--studies", default=1000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--cells", default="", help="regular expression; only cells whose name it finds")
@click.option("--part", default="1/1", help="i/n: every n-th cell from the i-th")
@click.option("--self-duels", default=0, help="instead: so many duels of two confirmed searches of one method")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=None)
def main(studies: int, seed: int, cells: str, part: str, self_duels: int, out: Path | None) -> None:
    """Measure the cells that are not in the file yet, and print all."""
    if self_duels:
        click.echo(confirmed_duels(self_duels, seed))
        return
    out = out or Path(__file__).parent / "results" / "calibration.jsonl"
    out.parent.mkdir(exist_ok=True)
    first, of = map(int, part.split("/"))
    chosen = [world for world in dict.fromkeys(worlds()) if re.search(cells, name(world))][first - 1 :: of]
    for world in chosen:
        done = {row["cell"] for row in read(out) if row["studies"] >= studies and row["seed"] == seed}
        if name(world) not in done:
            row = measure(world, studies, seed)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(table([row]).splitlines()[-1])
    rows = read(out)
    click.echo(f"\n{table(rows)}\n\nBest of the candidates:\n\n{calibration(rows, 'of_candidates')}")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
