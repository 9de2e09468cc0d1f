"""What to try first: the best and different points of related studies, and the paper's settings for other encoders.

A related study differs in method, encoder, language or size. Its values are moved to the nearest legal ones; a searched
hyperparameter that it did not have keeps the published value. Where the points come from is written into the journal
when the study begins, so that what becomes of the other studies later changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from search.space import PAPER, Param, Space, paper_point
from search.store.bucket import pull
from search.store.journal import fold
from search.store.layout import StorageError, UserError, find_study
from search.store.ledger import Ledger
from search.study.plan import point_means
from search.study.samplers import Point, walk
from trainables.contract.registry import declared

MOST = 8  # points that are tried before the sampler proposes any
APART = 0.1  # of a range, by which some hyperparameter of two different points differs


@dataclass(frozen=True)
class RelatedPoint:
    """A point of this space, and where it comes from: "simcse-1 t0007", or "paper bert-large"."""

    point: Point
    origin: str


def related_points(space: Space, storage: str) -> list[RelatedPoint]:
    """The points that `search.start` names, one of each of its studies in turn, best first; at most `MOST`.

    Args: storage: absolute, where the studies lie.
    Raises: UserError for a study that is not there, has no completed point or shares no searched hyperparameter, and
        for `paper` where the method has no setting for another encoder.
    """
    sources = [_presets(space) if name == PAPER else _study(space, storage, name) for name in space.search.start]
    published = paper_point(space) if space.search.baseline == PAPER else {}
    chosen: list[RelatedPoint] = []
    for found in chain.from_iterable(zip_longest(*sources)):
        if found is None or len(chosen) == MOST:
            continue
        earlier = [one.point for one in chosen] + ([published] if space.search.baseline == PAPER else [])
        if all(differ(space, found.point, other) for other in earlier):
            chosen.append(found)
    return chosen


def differ(space: Space, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two points lie more than a tenth of a range apart in some hyperparameter, or choose differently."""
    if first.keys() != second.keys():
        return True
    return any(_distance(space.params[name], first[name], second[name]) > APART for name in first)


def _distance(param: Param, first: Any, second: Any) -> float:
    """In ranges of the parameter (on its scale); 1 for two choices."""
    if param.values is not None:
        return float(first != second)
    assert param.low is not None
    assert param.high is not None
    if param.log:
        return float(abs(math.log(first / second)) / math.log(param.high / param.low))
    return float(abs(first - second) / (param.high - param.low))


def _presets(space: Space) -> Iterator[RelatedPoint]:
    method = declared(space.method)
    others = [name for name in method.presets if name != space.preset]
    if not others:
        raise UserError(f"search.start: {PAPER}: method {space.method} has no setting for another encoder")
    return (RelatedPoint(moved(space, method.values(name)), f"{PAPER} {name}") for name in others)


def _study(space: Space, storage: str, name: str) -> Sequence[RelatedPoint]:
    try:
        folder = find_study(storage, name)
    except StorageError as error:
        raise UserError(f"search.start: {error}") from error
    pull(folder)
    ledger = fold(folder.journal, Ledger())
    maximise = ((ledger.space or {}).get("metric") or {}).get("mode", "max") == "max"
    means = point_means(ledger)
    if not means:
        raise UserError(f"search.start: study {name} has no completed point")
    trials = {number: ledger.by_point["search", number][0].trial for number in means}
    theirs = dict.fromkeys(param for trial in trials.values() for param in trial.point)
    if not theirs.keys() & space.params.keys():
        raise UserError(
            f"search.start: study {name} searched {', '.join(theirs)}, of which this space searches nothing"
        )
    found, missing = [], dict[str, None]()
    for n in sorted(means, key=lambda number: means[number], reverse=maximise):
        try:
            found.append(RelatedPoint(moved(space, trials[n].params), f"{name} {trials[n].id}"))
        except KeyError as error:  # it did not exist under that point's conditions
            missing[error.args[0]] = None
    if not found:
        raise UserError(f"search.start: study {name} has no {', '.join(missing)}, and the space has no preset of them")
    return found


def moved(space: Space, params: Mapping[str, Any]) -> Point:
    """The point of the space nearest to these hyperparameters; published values for those that are not among them.

    Raises: KeyError for one that is neither among them nor published.
    """
    values = declared(space.method).values(space.preset) | dict(params)
    return walk(space, lambda param: param.nearest(values[param.name]))
