"""Opening the sealed test sets: what is scored, how it is averaged, and the record that it was done.

Every opening is written to the study's run before anything is scored, with time, trials, sets and reason: a second one
may be needed, but readers of the study must see that there was one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from analysis.checkpoints.choice import trial_path
from analysis.checkpoints.openings import Opening, check_reason, record_opening
from analysis.checkpoints.overlap import overlaps, seen_sets, shared_texts
from analysis.checkpoints.quantised import quantised_scores
from analysis.checkpoints.trained import Trained, loaders, read_spec
from analysis.errors import AnalysisError, InputError
from analysis.statistics.pairs import PairedGain, paired_gains, spearman_influence
from analysis.statistics.selection import NORMAL
from analysis.tables.record import UNTRAINED
from analysis.tables.study import Arrays, Study
from search import schema
from trainables.contract.errors import DataError
from trainables.contract.origin import JOURNAL, at_origin
from trainables.contract.trial import QUERIES_SUFFIX, RETRIEVAL_MEASURES, study_folder
from trainables.data.catalogue import SUITES
from trainables.data.retrieval import Retrieval, folder_entry, is_retrieval, load_retrieval
from trainables.data.sets import Pairs, load_pairs
from trainables.encoders.network import SentenceNetwork, wanted_states
from trainables.evaluation.metrics import percent, sts_average
from trainables.evaluation.scoring import evaluate, prepare_sets
from trainables.evaluation.transfer import TASKS, transfer, transfer_average

TEST_SIMILARITIES = "test_similarities.npz"  # trial run: cosines and gold scores, or measures of queries, per test set
AVERAGE, AVERAGE_WITHOUT_STSB, TRANSFER_AVERAGE = "avg_test", "avg_without_stsb_test", "transfer_avg_test"


@dataclass(frozen=True)
class SetScore:
    """Spearman in [-1, 1] or a retrieval measure in [0, 1] on one test set, with its 95 % interval over pairs or
    queries (not over seeds)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TestResult:
    """One trial on the test sets.

    point, baseline: its configuration, and whether that is the paper's. scores: per pair set, and per measure of a
    retrieval set. similarities: cosines and gold scores per pair set, measures of the queries per retrieval set.
    metrics: everything that is logged: Spearman in [-1, 1], retrieval measures and transfer accuracies in [0, 1].
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    trial: str
    run_id: str
    seed: int
    point: str
    baseline: bool
    scores: Mapping[str, SetScore]
    metrics: Mapping[str, float]
    similarities: Arrays


def score(
    trained: Trained, sets: Sequence[Pairs | Retrieval], precisions: Sequence[str] = ()
) -> tuple[dict[str, SetScore], dict[str, float], Arrays]:
    """Score a network on test sets.

    Args: precisions: of vectors that are scored beside float32 (`quantised.PRECISIONS`), as `<set>_int8`.
    Returns: score per pair set and per measure of a retrieval set; the metrics to log: `<set>_test`, its `_mean` and
        `_wmean` (7.1), the averages; cosines and gold scores per pair set, measures of the queries per retrieval set,
        as `similarities.npz` has them for the dev sets.
    """
    if not sets:
        return {}, {}, {}
    scored, ranked = [s for s in sets if isinstance(s, Pairs)], [s for s in sets if isinstance(s, Retrieval)]
    prepared = prepare_sets(scored, trained.tokenise, ranked, trained.prompts)
    vectors = trained.network.embed(prepared.sentences).detach().float()
    result = evaluate(lambda _: vectors, prepared, split="test")
    scores, metrics = _measured(result.metrics, result.similarities, scored, ranked, trained.language)
    for precision in precisions:
        found, also = _measured(*quantised_scores(vectors, prepared, precision), scored, ranked, trained.language)
        scores |= {f"{name}_{precision}": value for name, value in found.items()}
        end = f"_{precision}{schema.TEST_SUFFIX}"
        metrics |= {name.replace(schema.TEST_SUFFIX, end): value for name, value in also.items()}
    kinds = ["", *(f"_{precision}" for precision in precisions)]  # each beside float32
    names = [name.replace(schema.TEST_SUFFIX, kind + schema.TEST_SUFFIX) for name in metrics for kind in kinds]
    gold = {f"{pairs.name}{schema.GOLD_SUFFIX}": pairs.gold.astype(np.float32) for pairs in scored}
    return scores, {n: metrics[n] for n in names if n in metrics}, {**result.similarities, **gold}


def _measured(
    metrics: Mapping[str, float],
    similarities: Arrays,
    pairs: Sequence[Pairs],
    ranked: Sequence[Retrieval],
    language: str,
) -> tuple[dict[str, SetScore], dict[str, float]]:
    """Score per pair set and per measure of a retrieval set; test metrics and averages."""
    scores = {}
    for one in pairs:
        value, half = metrics[f"{one.name}{schema.TEST_SUFFIX}"], np.nan
        if np.isfinite(value):
            influence = spearman_influence(similarities[f"{one.name}{schema.TEST_SUFFIX}"], one.gold)[1]
            half = NORMAL * float(np.sqrt(np.var(influence) / len(influence)))
        scores[one.name] = SetScore(value, value - half, value + half)
    for name in (f"{one.name}_{measure}" for one in ranked for measure in RETRIEVAL_MEASURES):
        queries = np.asarray(similarities[name + QUERIES_SUFFIX], dtype=np.float64)
        value, half = float(queries.mean()), NORMAL * float(queries.std() / np.sqrt(len(queries)))
        scores[name] = SetScore(value, value - half, value + half)
    logged = {name: value for name, value in metrics.items() if schema.TEST_SUFFIX in name}
    return scores, logged | averages({name: s.value for name, s in scores.items()}, language)


def averages(values: Mapping[str, float], language: str) -> dict[str, float]:
    """The papers' averages in [-1, 1], of complete suites only.

    English: the seven scores in percent rounded to two decimals, their mean rounded again (7.1). Chinese: plain mean of
    the five, and without STS-B, whose published EdaCSE column is no target (D17).
    """
    suite = SUITES.get(language, ())
    if not suite or not all(name in values for name in suite):
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
    values = {f"transfer_{task.lower()}{schema.TEST_SUFFIX}": s.test / 100 for task, s in found.items()}
    if len(there) == len(TASKS):
        values[TRANSFER_AVERAGE] = transfer_average(found) / 100
    return values


def load_sets(
    names: Sequence[str], language: str, columns: Mapping[str, str] | None = None
) -> tuple[list[Pairs | Retrieval], dict[str, str]]:
    """The test sets that exist, and why other sets are missing (name -> reason).

    Args: columns: the study's, by which its own files are read; of a set that has none such, the usual ones are.
    """
    sets: list[Pairs | Retrieval] = []
    missing: dict[str, str] = {}
    for name in map(folder_entry, names):
        ranked = is_retrieval(name)
        for wanted in (columns, None) if columns and not ranked else (None,):
            try:
                sets.append(load_retrieval(name, "test") if ranked else load_pairs(name, "test", language, wanted))
                missing.pop(name, None)
                break
            except DataError as fault:
                missing.setdefault(name, str(fault))
    return sets, missing


def default_sets(data: Mapping[str, Any]) -> tuple[str, ...]:
    """The suite of the language; the builtin test set for a study on builtin data, whose model is not pre-trained."""
    if "builtin" in data["dev"]:
        return ("builtin",)
    language = str(data.get("language", "en"))
    if language not in SUITES:
        raise InputError(f"language {language!r} has no suite of test sets; name some with --set")
    return SUITES[language]


@dataclass(frozen=True)
class Opened:
    """What an opening gave. earlier: previous openings of the study; missing: set -> why it was not scored;
    unread: dev set that selected -> why it was not checked for overlap with the test sets."""

    results: tuple[TestResult, ...]
    overlaps: tuple[str, ...]
    earlier: tuple[str, ...]
    missing: Mapping[str, str]
    unread: Mapping[str, str]


def open_tests(
    study: Study,
    trials: pd.DataFrame,
    reason: str,
    sets: Sequence[str] = (),
    transfer_root: Path | None = None,
    now: datetime | None = None,
    *,
    untrained: bool = False,
    precisions: Sequence[str] = (),
) -> Opened:
    """Score trials' best checkpoints on the test sets and log it: first the opening, then the scores.

    Args:
        trials: rows of `study.trials`. reason: why, one line, stored for good. sets: default `default_sets`.
        transfer_root: SentEval's `downstream` folder.
        precisions: of vectors that are scored beside float32, see `score`.
        untrained: score what the first of the trials started from instead, as `untrained_<set>_test`.
    Raises: InputError for an empty reason; AnalysisError if a checkpoint or every test set is missing, before anything
        is opened, or if MLflow refuses what is written.
    """
    check_reason(reason)
    trials = trials.iloc[:1] if untrained else trials  # all of them started from the same encoder
    folders = [trial_path(study, folder) for folder in trials["folder"]]
    spec = read_spec(folders[0])
    data = spec.data
    names = tuple(sets) or default_sets(data)
    tests, missing = load_sets(names, str(data.get("language", "en")), data.get("columns"))
    if not tests and transfer_root is None:
        raise AnalysisError("no test set is available:\n" + "\n".join(missing.values()))
    texts = None if transfer_root else [text for one in tests for text in _texts(one)]
    networks = loaders(folders, texts=texts, untrained=untrained)

    ids = (UNTRAINED if untrained else "") + ", ".join(trials["trial"])
    scored = ", ".join([one.name for one in tests] + (["transfer"] if transfer_root else []))
    record = record_opening(study, f"{ids} on {scored}", reason, now)

    results = []
    for (_, row), load in zip(trials.iterrows(), networks, strict=True):
        scores, metrics, similarities = _scored(load(), tests, transfer_root, precisions)
        if untrained:
            scores = {f"{schema.UNTRAINED_PREFIX}{name}": s for name, s in scores.items()}
            metrics = {f"{schema.UNTRAINED_PREFIX}{name}": value for name, value in metrics.items()}
        results.append(
            TestResult(
                trial=str(row["trial"]), run_id=str(row["run_id"]), seed=int(row["seed"]), point=str(row["point"]),
                baseline=bool(row["baseline"]), scores=scores, metrics=metrics, similarities=similarities,
            )
        )  # fmt: skip
        _log(record, results[-1], files=not untrained)  # those of the trained checkpoint stay
    lines = []
    with at_origin(f"{study_folder(folders[0])}/{JOURNAL}", spec.encoder, data):
        seen, unread = seen_sets(data, spec.metric)
        for one in tests:
            if isinstance(one, Retrieval):
                lines += shared_texts(f"{one.name} test", one.queries, data, "queries")
    lines += overlaps([one for one in tests if isinstance(one, Pairs)], seen)
    return Opened(tuple(results), tuple(lines), record.earlier, missing, unread)


def _texts(one: Pairs | Retrieval) -> list[str]:
    return [*one.first, *one.second] if isinstance(one, Pairs) else [*one.queries, *one.documents]


def _scored(
    trained: Trained, tests: Sequence[Pairs | Retrieval], transfer_root: Path | None, precisions: Sequence[str]
) -> tuple[dict[str, SetScore], dict[str, float], Arrays]:
    scores, metrics, similarities = score(trained, tests, precisions)
    return scores, metrics | (transfer_scores(trained, transfer_root) if transfer_root else {}), similarities


def summary(results: Sequence[TestResult]) -> pd.DataFrame:
    """One row per configuration and metric: trials, baseline, metric, n, mean, sd over seeds (NaN for one).

    In the unit of the metrics. Configurations stay apart: a mean over two of them is a mean of nothing.
    """
    rows = []
    for point in dict.fromkeys(result.point for result in results):
        mine = [result for result in results if result.point == point]
        table = pd.DataFrame([dict(result.metrics) for result in mine])
        trials = ", ".join(result.trial for result in mine)
        rows += [
            (trials, mine[0].baseline, name, int(values.count()), values.mean(), values.std(ddof=1))
            for name, values in table.items()
        ]
    return pd.DataFrame(rows, columns=["trials", "baseline", "metric", "n", "mean", "sd"])


def gains(results: Sequence[TestResult]) -> list[PairedGain]:
    """The tested configuration less the baseline per pair set and on their mean, and per retrieval set by its first
    measure; [] unless one of each was tested."""
    sides = [[r for r in results if r.baseline is baseline and r.similarities] for baseline in (False, True)]
    if not all(sides) or len({r.point for r in sides[0]}) > 1:
        return []
    first, second = ({r.seed: r.similarities for r in side} for side in sides)
    return paired(first, second)


def paired(first: Mapping[int, Arrays], second: Mapping[int, Arrays]) -> list[PairedGain]:
    """Args: seed -> what `score` returns, whose sets are the same throughout."""
    sides, shown = (first, second), next(iter(first.values()))
    gold = {
        name.removesuffix(schema.GOLD_SUFFIX): values
        for name, values in shown.items()
        if name.endswith(schema.GOLD_SUFFIX)
    }
    main = f"_{RETRIEVAL_MEASURES[0]}{QUERIES_SUFFIX}"
    ranked = [name for name in shown if name.endswith(main)]
    cosines = [{seed: {s: a[s + schema.TEST_SUFFIX] for s in gold} for seed, a in side.items()} for side in sides]
    measured = [
        {seed: {s.removesuffix(QUERIES_SUFFIX): a[s] for s in ranked} for seed, a in side.items()} for side in sides
    ]
    try:
        return paired_gains(cosines[0], cosines[1], gold) + paired_gains(measured[0], measured[1])
    except ValueError:  # a collapsed model: all cosines equal, no correlation
        return []


def printed(value: float) -> str:
    """As the papers print it: x 100, two decimals, halves as in `metrics.percent`."""
    return f"{percent(value):.2f}" if np.isfinite(value) else "-"


def _for_transfer(trained: Trained) -> Trained:
    pooling = trained.method.declaration.transfer_pooling
    if pooling is None or not isinstance(trained.network, SentenceNetwork):
        return trained
    network = copy.copy(trained.network)  # shares the weights
    network.pooling, network.head_at_test = pooling, False
    network.wanted = wanted_states(pooling, network.encoder.config.num_hidden_layers)
    return replace(trained, network=network)


def _log(opening: Opening, result: TestResult, files: bool) -> None:
    intervals = {
        f"{name}{schema.TEST_SUFFIX}_{end}": getattr(s, end)
        for name, s in result.scores.items()
        for end in ("low", "high")
    }
    opening.log(result.run_id, {**result.metrics, **intervals})
    if files and result.similarities:
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / TEST_SIMILARITIES
            np.savez(file, **result.similarities)  # type: ignore[arg-type]  # numpy's stub accepts no mapping of arrays
            opening.log_files(result.run_id, Path(scratch))
