"""How much training improved a test score: trained trials less the encoder that they started from."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd

from analysis.checkpoints.testing import TEST_SIMILARITIES, TestResult, paired
from analysis.reading.store import StoredRun
from analysis.statistics.pairs import PairedGain
from analysis.tables.record import TrainingGain
from analysis.tables.study import Arrays, Study
from search import schema


def training_gains(study: Study, trained: pd.DataFrame, start: TestResult) -> list[TrainingGain]:
    """Trained trials less what they started from, where an earlier opening has scored them; [] without one.

    Args: trained: rows of `study.trials`. start: of the encoder before training.
    """
    seeds = dict(zip(trained["run_id"], trained["seed"], strict=True))
    runs = [run for run in study.stored_trials if run.run_id in seeds]
    stored = {int(seeds[run.run_id]): _stored_scores(study, run) for run in runs}
    scored = {seed: arrays for seed, arrays in stored.items() if arrays.keys() == start.similarities.keys()}
    intervals: dict[str, PairedGain] = {}
    if scored and all(_same_set(arrays, start.similarities) for arrays in scored.values()):
        intervals = {gain.name: gain for gain in paired(scored, dict.fromkeys(scored, start.similarities))}
    found = []
    for name, before in start.metrics.items():
        metric = name.removeprefix(schema.UNTRAINED_PREFIX)
        if values := [run.metrics[metric] for run in runs if metric in run.metrics]:
            gain = intervals.get(metric.removesuffix(schema.TEST_SUFFIX))
            low, high = (gain.low, gain.high) if gain else (np.nan, np.nan)
            found.append(TrainingGain(metric, float(np.mean(values)), before, low, high))
    return found


def _stored_scores(study: Study, run: StoredRun) -> Arrays:
    content = study.store.artifact(run, TEST_SIMILARITIES)
    if content is None:
        return {}
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _same_set(one: Arrays, other: Arrays) -> bool:
    """Whether the pairs or queries seem to be the same: as many, with the same gold scores."""
    shapes = all(one[name].shape == other[name].shape for name in other)
    return shapes and all(np.array_equal(one[n], other[n]) for n in other if n.endswith(schema.GOLD_SUFFIX))
