"""The seven transfer tasks: a logistic regression on frozen sentence vectors (methods 7.4).

The scikit-learn path of SentEval (D61): the same folds, grids, order of examples and rounding. Files lie in SentEval's
layout, a folder per task under one root (`MR/rt-polarity.pos`, `SST/binary/sentiment-train`, ...).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from trainables.contract.errors import DataError

SEED = 1111
FOLDS = 10
C_NARROW = tuple(2.0**t for t in range(-2, 4))  # nested folds and a dev split
C_WIDE = tuple(2.0**t for t in range(-1, 6))  # folds on train, then test
TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")

Vectors = NDArray[np.floating]  # (n, D)
Labels = NDArray[np.int64]  # (n,)
EmbedTexts = Callable[[Sequence[str]], Vectors]  # texts -> (n, D) in the same order

_ONE_PER_LINE = {  # task -> files of class 1 and class 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


@dataclass(frozen=True)
class Score:
    """Accuracies in percent, two decimals. dev: what chose C; test: the result; f1: of class 1, MRPC only."""

    dev: float
    test: float
    f1: float | None = None


@dataclass(frozen=True)
class Texts:
    """Labelled texts in SentEval's order (tokens, then label). second: the other sentence of each pair (MRPC)."""

    first: list[str]
    labels: Labels
    second: list[str] | None = None


def nested_folds(
    x: Vectors, y: Labels, folds: int = FOLDS, grid: Sequence[float] = C_NARROW, seed: int = SEED
) -> Score:
    """MR, CR, SUBJ, MPQA: the outer folds test, the inner folds of each outer one choose C.

    Args:
        x: (n, D); y: (n,) classes. grid: values of C, the inverse strength of the L2 penalty.
    """
    chosen, tested = [], []
    for train, test in _folds(folds).split(x, y):
        c, accuracy = _best_c(x[train], y[train], folds, grid, seed)
        chosen.append(accuracy)
        tested.append(_percent(_fit(x[train], y[train], c, seed).score(x[test], y[test])))
    return Score(round(float(np.mean(chosen)), 2), round(float(np.mean(tested)), 2))


def folds_then_test(
    train: tuple[Vectors, Labels],
    test: tuple[Vectors, Labels],
    folds: int = FOLDS,
    grid: Sequence[float] = C_WIDE,
    seed: int = SEED,
    with_f1: bool = False,
) -> Score:
    """TREC, MRPC: folds of the training part choose C, one fit on all of it, score on the test part."""
    c, accuracy = _best_c(*train, folds, grid, seed)
    model = _fit(*train, c, seed)
    f1 = _percent(f1_score(test[1], model.predict(test[0]))) if with_f1 else None
    return Score(accuracy, _percent(model.score(*test)), f1)


def dev_then_test(
    train: tuple[Vectors, Labels],
    dev: tuple[Vectors, Labels],
    test: tuple[Vectors, Labels],
    grid: Sequence[float] = C_NARROW,
    seed: int = SEED,
) -> Score:
    """SST-2: the dev part chooses C, score on the test part."""
    scores = [_percent(_fit(*train, c, seed).score(*dev)) for c in grid]
    best = int(np.argmax(scores))
    return Score(scores[best], _percent(_fit(*train, grid[best], seed).score(*test)))


def pair_features(u: Vectors, v: Vectors) -> Vectors:
    """(n, 2D) features [|u - v|, u * v] of sentence pairs (MRPC)."""
    return np.concatenate((np.abs(u - v), u * v), axis=1)


def transfer(root: Path, embed: EmbedTexts, tasks: Sequence[str] = TASKS) -> dict[str, Score]:
    """Scores of the tasks, in the order asked for.

    Args:
        root: folder with a folder per task.
        embed: vectors for a list of texts (tokens joined by blanks); called once per part of a task.
    Raises: ValueError for an unknown task; DataError for a missing or malformed file, before anything is embedded.
    """
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {unknown[0]!r}")
    loaded = {task: load_task(root, task) for task in tasks}
    return {task: _score(task, parts, embed) for task, parts in loaded.items()}


def transfer_average(scores: Mapping[str, Score]) -> float:
    """Mean test accuracy of the tasks, two decimals, as the papers' Avg. column."""
    return round(float(np.mean([score.test for score in scores.values()])), 2)


def load_task(root: Path, task: str) -> dict[str, Texts]:
    """The parts of a task: "all", or "train" (and "dev") and "test". Encodings are those that SentEval assumes.

    Raises: DataError naming the file that is missing or malformed.
    """
    if task in _ONE_PER_LINE:
        positive, negative = (_text(root / file, "latin-1").splitlines() for file in _ONE_PER_LINE[task])
        return {"all": _ordered([(t, 1) for t in positive] + [(t, 0) for t in negative])}
    if task == "SST2":
        files = {part: root / "SST" / "binary" / f"sentiment-{part}" for part in ("train", "dev", "test")}
        return {
            part: _ordered([_sst_row(path, line) for line in _lines(path, "utf-8")]) for part, path in files.items()
        }
    if task == "TREC":
        files = {"train": root / "TREC" / "train_5500.label", "test": root / "TREC" / "TREC_10.label"}
        return {
            part: _ordered([_trec_row(path, line) for line in _lines(path, "latin-1")]) for part, path in files.items()
        }
    files = {part: root / "MRPC" / f"msr_paraphrase_{part}.txt" for part in ("train", "test")}
    return {part: _mrpc(path) for part, path in files.items()}


def _score(task: str, parts: Mapping[str, Texts], embed: EmbedTexts) -> Score:
    xy = {part: (_features(texts, embed), texts.labels) for part, texts in parts.items()}
    if task in _ONE_PER_LINE:
        return nested_folds(*xy["all"])
    if task == "SST2":
        return dev_then_test(xy["train"], xy["dev"], xy["test"])
    return folds_then_test(xy["train"], xy["test"], with_f1=task == "MRPC")


def _features(texts: Texts, embed: EmbedTexts) -> Vectors:
    if texts.second is None:
        return embed(texts.first)
    return pair_features(embed(texts.first), embed(texts.second))


def _folds(folds: int) -> StratifiedKFold:
    return StratifiedKFold(n_splits=folds, shuffle=True, random_state=SEED)  # SentEval fixes it whatever its seed


def _best_c(x: Vectors, y: Labels, folds: int, grid: Sequence[float], seed: int) -> tuple[float, float]:
    """The C of the best mean accuracy over folds (the first of equals) and that accuracy in percent."""
    splits = list(_folds(folds).split(x, y))
    scores = [
        _percent(np.mean([_fit(x[train], y[train], c, seed).score(x[test], y[test]) for train, test in splits]))
        for c in grid
    ]
    best = int(np.argmax(scores))
    return grid[best], scores[best]


def _fit(x: Vectors, y: Labels, c: float, seed: int) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # SentEval stops at 100 iterations and takes the result
        return LogisticRegression(C=c, random_state=seed).fit(x, y)


def _percent(share: float) -> float:
    return round(100 * float(share), 2)


def _ordered(rows: Sequence[tuple[str, int]]) -> Texts:
    """By number of tokens, then label, as SentEval sorts them: the order decides which folds examples fall into."""
    rows = sorted(rows, key=lambda row: (len(row[0].split()), row[1]))
    return Texts([_tokens(text) for text, _ in rows], np.array([label for _, label in rows], dtype=np.int64))


def _tokens(text: str) -> str:
    return " ".join(text.split()) or "."  # SentEval's stand-in for an empty sentence


def _text(path: Path, encoding: str) -> str:
    try:
        return path.read_text(encoding)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"transfer task file {path}: {reason}; expected a task folder of SentEval (data/downstream)"
        ) from error


def _lines(path: Path, encoding: str) -> list[str]:
    return [line for line in _text(path, encoding).split("\n") if line.strip()]


def _sst_row(path: Path, line: str) -> tuple[str, int]:
    text, _, label = line.rstrip().rpartition("\t")
    if label not in ("0", "1"):
        raise DataError(f"{path}: expected sentence, tab, 0 or 1, got {line[:60]!r}")
    return text, int(label)


def _trec_row(path: Path, line: str) -> tuple[str, int]:
    label, _, text = line.partition(" ")
    coarse = label.split(":")[0]
    if coarse not in _TREC_CLASSES:
        raise DataError(f"{path}: expected a class of {', '.join(_TREC_CLASSES)}, got {line[:60]!r}")
    return text, _TREC_CLASSES.index(coarse)


def _mrpc(path: Path) -> Texts:
    rows = []
    for line in _lines(path, "utf-8")[1:]:  # header
        fields = line.rstrip().split("\t")
        if len(fields) != 5 or fields[0] not in ("0", "1"):
            raise DataError(f"{path}: expected label, two ids and two sentences divided by tabs, got {line[:60]!r}")
        rows.append((fields[3], fields[4], int(fields[0])))
    rows.sort(key=lambda row: (len(row[0].split()), len(row[1].split()), row[2]))
    labels = np.array([label for *_, label in rows], dtype=np.int64)
    return Texts([_tokens(a) for a, *_ in rows], labels, [_tokens(b) for _, b, _ in rows])
