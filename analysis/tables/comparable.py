"""What of several studies can be compared: which count together, on the same dev data, up to a common budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.reading.store import StoredRun
from analysis.tables.study import Study
from search import schema
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.trial import HELD, RETRIEVAL_MEASURES, at_width
from trainables.data.catalogue import set_name

COMPARABLE = ("completed", "pruned")
# What decides the training of a full-length trial beside the method's own parameters.
TRAINING = ("script", "data.train", "train.max_examples", "train.epochs")
_MEASURED = ("", HELD, *(f"_{measure}" for measure in RETRIEVAL_MEASURES))  # behind a set's name in its metrics


def label_of(run: StoredRun) -> str:
    """What is compared: the method with its encoder."""
    encoder = run.params.get("encoder", "")
    return f"{run.tags.get(schema.METHOD, run.experiment)}{f' ({encoder})' if encoder else ''}"


def groups(studies: Sequence[Study]) -> dict[str, list[Study]]:
    """Label, such as `simcse (bert-base-uncased), train.max_examples 1000`, -> the studies that count together."""
    alike: dict[str, list[Study]] = {}
    for study in studies:
        alike.setdefault(label_of(study.stored), []).append(study)
    found: dict[str, list[Study]] = {}
    for label, group in alike.items():
        differ = [name for name in TRAINING if len({_training(study, name) for study in group}) > 1]
        for study in group:
            full = ", ".join([label, *(f"{name} {_training(study, name)}" for name in differ)])
            found.setdefault(full, []).append(study)
    return found


def _training(study: Study, name: str) -> str:
    """A setting of TRAINING as a space file has it."""
    if name.removeprefix("train.") in study.searched:
        return "searched"
    value = study.stored.params.get(name)
    return "null" if value in (None, "None") else value


def same_data(first: Study, second: Study) -> bool:
    """Whether two studies' metric was measured on the same dev sets and the same share of them, as far as is known: by
    the gold scores that trials have stored; where there are none, by the sets' paths."""
    for part in first.metric.parts:
        for known in (_gold, _path):
            one, other = known(first, part), known(second, part)
            if one is not None and other is not None:
                if not np.array_equal(one, other):
                    return False
                break
    held = [(study.space["metric"] or {}).get("holdout") or 0.0 for study in (first, second) if "metric" in study.space]
    return len({*held}) < 2


def _gold(study: Study, part: str) -> NDArray[np.generic] | None:
    """Gold scores of a dev metric's pairs as a trial has stored them, None if none has."""
    for run_id in study.trials.loc[study.trials["stop"] == "completed", "run_id"]:
        if (arrays := study.similarities(str(run_id))) is not None:
            return arrays.get(at_width(part)[0].removesuffix(DEV_SUFFIX) + GOLD_SUFFIX)
    return None


def _path(study: Study, part: str) -> str | None:
    """The dev set behind a dev metric as the space has it, None if that is not known."""
    ends, metric = {f"{end}{DEV_SUFFIX}" for end in _MEASURED}, at_width(part)[0]
    return next((name for name in study.data.get("dev") or () if metric.removeprefix(set_name(name)) in ends), None)


def first_points(study: Study, count: int, *, first_seeds: bool = False) -> Study:
    """The study as if its search had ended after so many evaluated points. Its confirmations stay if the best of these
    points is among what was confirmed: others are of a longer search.

    Args: first_seeds: without further seeds of the search, which a longer one gives to points that come later.
    """

    def of(trials: pd.DataFrame) -> Study:
        return replace(study, trials=trials.reset_index(drop=True))

    trials = study.trials
    value = trials["value"].notna() & trials["stop"].isin(COMPARABLE)
    points = trials.loc[value, "point"].drop_duplicates()
    if first_seeds:
        again = trials[value & (trials["stage"] != "confirm")].duplicated("point")
        trials = trials.drop(index=again.index[again])
    cut = of(trials[trials["point"].isin(points[:count])])
    searched = cut.points.dropna(subset="search_value")
    if len(points) > count and len(searched):
        best = int((study.metric.sign * searched["search_value"]).argmax())
        if not searched["confirmed"].iloc[best]:
            return of(cut.trials[cut.trials["stage"] != "confirm"])
    return cut


def shares(group: Sequence[Study], budget: int) -> list[tuple[Study, int]]:
    """How many of a method's first `budget` configurations each study has, oldest study first."""
    found: list[tuple[Study, int]] = []
    for study in sorted(group, key=lambda study: study.stored.start):
        n = min(budget, evaluated(study))
        if n:
            found.append((study, n))
            budget -= n
    return found


def evaluated(study: Study) -> int:
    """Configurations with a value of the search, pruned ones too."""
    points = study.points
    return int((points["search_value"].notna() | ((points["stop"] == "pruned") & points["value"].notna())).sum())
