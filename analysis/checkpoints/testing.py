"""Opening the sealed test sets: what is scored, how it is averaged, and the record that it was done.

Every opening is written to the study's run before anything is scored, with time, trials, sets and reason: a second look
may be needed, but whoever reads the study must see that there was one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pandas as pd

from analysis.errors import AnalysisError, InputError, unknown
from analysis.facts import openings
from analysis.overlap import Overlap, overlaps
from analysis.stats import spearman_influence
from analysis.study import Arrays, Study
from analysis.trained import Trained, load_trained, read_spec
from analysis.verdict import judge
from search import record
from search.record import OPENING
from trainables.checkpoint import WEIGHTS
from trainables.data import DataError, Pairs, load_pairs
from trainables.evaluate import evaluate, prepare_sets, test_suite
from trainables.metrics import metric_parts, percent, sts_average
from trainables.network import SentenceNetwork
from trainables.pooling import wanted_states
from trainables.transfer import TASKS, transfer, transfer_average

TEST_SIMILARITIES = "test_similarities.npz"  # trial run: cosines and gold scores per test set
AVERAGE, AVERAGE_WITHOUT_STSB, TRANSFER_AVERAGE = "avg_test", "avg_without_stsb_test", "transfer_avg_test"
TRANSFER_POOLING = {"sda": "avg_top2"}  # D29; the other methods use one pooling for everything
Z = 1.96  # of a two-sided 95 % interval


@dataclass(frozen=True)
class SetScore:
    """Spearman on one test set in [-1, 1] with its 95 % interval over pairs (not over seeds)."""

    value: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class TestResult:
    """One trial on the test sets.

    scores: per set. metrics: everything that is logged: Spearman in [-1, 1], transfer accuracies in [0, 1].
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    trial: str
    run_id: str
    seed: int
    scores: Mapping[str, SetScore]
    metrics: Mapping[str, float]


def score(trained: Trained, sets: Sequence[Pairs]) -> tuple[dict[str, SetScore], dict[str, float], Arrays]:
    """Score a network on test sets.

    Returns: score per set; the metrics to log: `<set>_test`, its `_mean` and `_wmean` (7.1), the averages; cosines and
        gold scores per set, as `similarities.npz` has them for the dev sets.
    """
    if not sets:
        return {}, {}, {}
    result = evaluate(trained.network.embed, prepare_sets(sets, trained.tokenise), split="test")
    scores = {}
    for pairs in sets:
        value = result.metrics[f"{pairs.name}{record.TEST_SUFFIX}"]
        half = np.nan
        if np.isfinite(value):
            influence = spearman_influence(result.similarities[f"{pairs.name}{record.TEST_SUFFIX}"], pairs.gold)[1]
            half = Z * float(np.sqrt(np.var(influence) / len(influence)))
        scores[pairs.name] = SetScore(value, value - half, value + half, len(pairs))
    logged = {name: value for name, value in result.metrics.items() if record.TEST_SUFFIX in name}
    gold = {f"{pairs.name}{record.GOLD_SUFFIX}": pairs.gold.astype(np.float32) for pairs in sets}
    means = averages({name: s.value for name, s in scores.items()}, trained.language)
    return scores, logged | means, {**result.similarities, **gold}


def averages(values: Mapping[str, float], language: str) -> dict[str, float]:
    """The papers' averages in [-1, 1], of complete suites only.

    English: the seven scores in percent rounded to two decimals, their mean rounded again (7.1). Chinese: plain mean of
    the five, and without STS-B, whose published EdaCSE column is no target (D17).
    """
    suite = test_suite(language)
    if not all(name in values for name in suite):
        return {}
    if language == "en":
        return {AVERAGE: sts_average([values[name] for name in suite]) / 100}
    rest = [values[name] for name in suite if name != "stsb"]
    return {AVERAGE: float(np.mean([values[name] for name in suite])), AVERAGE_WITHOUT_STSB: float(np.mean(rest))}


def transfer_scores(trained: Trained, root: Path) -> dict[str, float]:
    """Test accuracies in [0, 1] of the tasks whose folders are there, `transfer_mr_test`; their mean if all seven are.

    Raises: InputError if no task's folder is there; DataError for malformed files.
    """
    there = [task for task in TASKS if (root / ("SST" if task == "SST2" else task)).is_dir()]
    if not there:
        raise InputError(f"{root}: expected folders of SentEval's tasks ({', '.join(TASKS)}), found none")
    found = transfer(root, _for_transfer(trained).embed, there)
    values = {f"transfer_{task.lower()}{record.TEST_SUFFIX}": s.test / 100 for task, s in found.items()}
    if len(there) == len(TASKS):
        values[TRANSFER_AVERAGE] = transfer_average(found) / 100
    return values


def chosen_trials(study: Study, named: Sequence[str], rng: np.random.Generator) -> pd.DataFrame:
    """The trials to test: the named ones, else all counted seeds of the point that the verdict names.

    Raises: InputError for an unknown trial.
    """
    trials = study.trials
    if named:
        for trial in named:
            if trial not in set(trials["trial"]):
                raise unknown("trial", trial, trials["trial"])
        return trials[trials["trial"].isin(list(named))]
    verdict = judge(trials, study.points, study.metric, study.searched, study.similarities, rng)
    point = study.points[study.points["point"] == verdict.best].iloc[0]
    return trials[trials["run_id"].isin(point["run_ids"])]


def load_sets(names: Sequence[str], language: str) -> tuple[list[Pairs], dict[str, str]]:
    """The test sets that are there, and why the others are not (name -> reason)."""
    sets, missing = [], {}
    for name in names:
        try:
            sets.append(load_pairs(name, "test", language))
        except DataError as fault:
            missing[name] = str(fault)
    return sets, missing


def default_sets(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The suite of the language; of a study on builtin data the builtin test set, since its model knows no words."""
    if "builtin" in data["dev"]:
        return ("builtin",)
    return test_suite(str(data.get("language", "en")))


def seen_sets(data: Mapping[str, Any], metric: str) -> list[tuple[str, Pairs]]:
    """Pair sets that selected (the dev sets in the metric) or trained, for `overlaps`."""
    language, columns = str(data.get("language", "en")), data.get("columns")
    selecting = {part.removesuffix(record.DEV_SUFFIX) for part in metric_parts(metric)}
    seen = [("dev", load_pairs(name, "dev", language, columns)) for name in data["dev"]]
    seen = [(part, pairs) for part, pairs in seen if pairs.name in selecting]
    for name in str(data["train"]).split("+"):
        try:
            seen.append(("train", load_pairs(name.strip(), "train", language, columns)))
        except DataError:  # a corpus without pairs, or without scores
            continue
    return seen


def with_checkpoint(study: Study, trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The trials whose weights were kept, and the names of the others (a study keeps those of its best trials only).

    Raises: AnalysisError if none was kept, naming trials that could be tested instead.
    """

    def kept(table: pd.DataFrame) -> list[bool]:
        return [_exists(f"{trial_path(study, folder)}/{WEIGHTS}") for folder in table["folder"]]

    there = kept(trials)
    if not any(there):
        others = study.trials[kept(study.trials)]["trial"]
        raise AnalysisError(
            f"no weights were kept of {', '.join(trials['trial'])}; there are weights of: {', '.join(others) or 'none'}"
        )
    return trials[there], list(trials.loc[[not t for t in there], "trial"])


def trial_path(study: Study, folder: str) -> str:
    """Absolute path or URI of a trial's folder."""
    return f"{study.run.tags.get(record.FOLDER, '')}/{folder}"


@dataclass(frozen=True)
class Opened:
    """What an opening gave. earlier: previous openings of the study; missing: set -> why it was not scored."""

    results: tuple[TestResult, ...]
    overlaps: tuple[Overlap, ...]
    earlier: tuple[str, ...]
    missing: Mapping[str, str]


def open_tests(
    study: Study,
    trials: pd.DataFrame,
    reason: str,
    sets: Sequence[str] = (),
    transfer_root: Path | None = None,
    now: datetime | None = None,
) -> Opened:
    """Score trials' best checkpoints on the test sets and log it: first the opening, then the scores.

    Args:
        trials: rows of `study.trials`. reason: why, one line, kept for ever. sets: default `default_sets`.
        transfer_root: SentEval's `downstream` folder.
    Raises: InputError for an empty reason; AnalysisError if a checkpoint or every test set is missing, before anything
        is opened.
    """
    if not reason.strip():
        raise InputError("expected a reason for opening the test sets, got an empty one")
    folders = [trial_path(study, folder) for folder in trials["folder"]]
    spec = read_spec(folders[0])
    data = spec.data
    names = tuple(sets) or default_sets(data)
    pairs, missing = load_sets(names, str(data.get("language", "en")))
    if not pairs and transfer_root is None:
        raise AnalysisError("none of the test sets is there:\n" + "\n".join(missing.values()))
    texts = None if transfer_root else [t for p in pairs for side in (p.first, p.second) for t in side]
    networks = [load_trained(folder, texts=texts) for folder in folders]  # a missing checkpoint shows here

    earlier = tuple(openings(study.run))
    when = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    ids = ", ".join(trials["trial"])
    scored = ", ".join([p.name for p in pairs] + (["transfer"] if transfer_root else []))
    client = _client(study.store.uri)
    tag = f"{OPENING}{len(earlier) + 1}"
    client.set_tag(study.run.run_id, tag, f"{when}: {ids} on {scored}: {reason.strip()}")

    results = []
    for (_, row), trained in zip(trials.iterrows(), networks, strict=True):
        scores, metrics, similarities = score(trained, pairs)
        if transfer_root is not None:
            metrics |= transfer_scores(trained, transfer_root)
        results.append(TestResult(str(row["trial"]), str(row["run_id"]), int(row["seed"]), scores, metrics))
        _log(client, results[-1], similarities, tag, when)
    return Opened(tuple(results), tuple(overlaps(pairs, seen_sets(data, spec.metric))), earlier, missing)


def summary(results: Sequence[TestResult]) -> pd.DataFrame:
    """One row per metric: n trials, mean, sd over them (NaN for one), in the unit of the metrics."""
    table = pd.DataFrame([dict(r.metrics) for r in results])
    return pd.DataFrame({"n": table.count(), "mean": table.mean(), "sd": table.std(ddof=1)}).rename_axis("metric")


def printed(value: float) -> str:
    """As the papers print it: x 100, two decimals, halves as in `metrics.percent`."""
    return f"{percent(value):.2f}" if np.isfinite(value) else "-"


def _for_transfer(trained: Trained) -> Trained:
    pooling = TRANSFER_POOLING.get(trained.spec.method)
    if pooling is None or not isinstance(trained.network, SentenceNetwork):
        return trained
    network = copy.copy(trained.network)  # shares the weights
    network.pooling, network.head_at_test = pooling, False
    network.wanted = wanted_states(pooling, network.encoder.config.num_hidden_layers)
    return replace(trained, network=network)


def _client(uri: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _exists(path: str) -> bool:
    filesystem, inner = fsspec.core.url_to_fs(path)
    return bool(filesystem.exists(inner))


def _log(client: Any, result: TestResult, similarities: Arrays, tag: str, when: str) -> None:
    from mlflow.entities import Metric, RunTag

    at = int(datetime.fromisoformat(when).timestamp() * 1000)
    number = int(tag.removeprefix(OPENING))
    metrics = [Metric(name, float(v), at, number) for name, v in result.metrics.items() if np.isfinite(v)]
    intervals = {
        f"{name}{record.TEST_SUFFIX}_{end}": getattr(s, end)
        for name, s in result.scores.items()
        for end in ("low", "high")
    }
    metrics += [Metric(name, float(v), at, number) for name, v in intervals.items() if np.isfinite(v)]
    client.log_batch(result.run_id, metrics=metrics, tags=[RunTag(tag, when)])
    if similarities:
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / TEST_SIMILARITIES
            np.savez(file, **similarities)  # type: ignore[arg-type]  # numpy's stub knows no mapping of arrays
            client.log_artifact(result.run_id, str(file))
