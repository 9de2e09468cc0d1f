"""The seven transfer tasks: a logistic regression on frozen sentence vectors (methods 7.4).

The scikit-learn path of SentEval (D61): the same folds, grids, order of examples and rounding. Files lie in SentEval's
layout, a folder per task under one root (`MR/rt-polarity.pos`, `SST/binary/sentiment-train`, ...).
"""

from __future__ import annotations

import re
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
Row = tuple[tuple[str, ...], int]  # one text, or the two of a pair, and the label

_ONE_PER_LINE = {  # task -> files of class 1 and class 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_PARTS = {  # task -> encoding and files; lines of a label, `first` and, in pairs, `second`; what an error expects
    "SST2": ("utf-8", {part: f"SST/binary/sentiment-{part}" for part in ("train", "dev", "test")},
             r"(?:(?P<first>.*)\t)?(?P<label>[01])", "sentence, tab, 0 or 1"),
    "TREC": ("latin-1", {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
             rf"(?P<label>{'|'.join(_TREC_CLASSES)})(?::[^ ]*)?(?: (?P<first>.*))?",
             f"a class of {', '.join(_TREC_CLASSES)}"),
    "MRPC": ("utf-8", {part: f"MRPC/msr_paraphrase_{part}.txt" for part in ("train", "test")},
             r"(?P<label>[01])\t[^\t]*\t[^\t]*\t(?P<first>[^\t]*)\t(?P<second>[^\t]*)",
             "label, two ids and two sentences divided by tabs"),
}  # fmt: skip


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

    Args: x: (n, D); y: (n,) classes. grid: values of C, the inverse strength of the L2 penalty.
    """
    chosen, tested = [], []
    for train, test in _folds(folds).split(x, y):
        c, accuracy = _best_c(x[train], y[train], folds, grid, seed)
        chosen.append(accuracy)
        tested.append(_accuracy(x[train], y[train], x[test], y[test], c, seed))
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
    scores = [_accuracy(*train, *dev, c, seed) for c in grid]
    best = int(np.argmax(scores))
    return Score(scores[best], _accuracy(*train, *test, grid[best], seed))


def pair_features(u: Vectors, v: Vectors) -> Vectors:
    """(n, 2D) features [|u - v|, u * v] of sentence pairs (MRPC)."""
    return np.concatenate((np.abs(u - v), u * v), axis=1)


def transfer(root: Path, embed: EmbedTexts, tasks: Sequence[str] = TASKS) -> dict[str, Score]:
    """Scores of the tasks, in their given order.

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
        return {"all": _ordered([((t,), 1) for t in positive] + [((t,), 0) for t in negative])}
    encoding, files, pattern, expected = _PARTS[task]
    found = {}
    for part, file in files.items():
        lines = [line for line in _text(root / file, encoding).split("\n") if line.strip()]
        rows = []
        for line in lines[1:] if task == "MRPC" else lines:  # MRPC has a header
            if (match := re.fullmatch(pattern, line.rstrip())) is None:
                raise DataError(f"{root / file}: expected {expected}, got {line[:60]!r}")
            fields = match.groupdict("")
            label = fields.pop("label")
            rows.append((tuple(fields.values()), int(label) if label in "01" else _TREC_CLASSES.index(label)))
        found[part] = _ordered(rows)
    return found


def _score(task: str, parts: Mapping[str, Texts], embed: EmbedTexts) -> Score:
    xy = {part: (_features(texts, embed), texts.labels) for part, texts in parts.items()}
    if task in _ONE_PER_LINE:
        return nested_folds(*xy["all"])
    if task == "SST2":
        return dev_then_test(xy["train"], xy["dev"], xy["test"])
    return folds_then_test(xy["train"], xy["test"], with_f1=task == "MRPC")


def _features(texts: Texts, embed: EmbedTexts) -> Vectors:
    first = embed(texts.first)
    return first if texts.second is None else pair_features(first, embed(texts.second))


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


def _accuracy(x: Vectors, y: Labels, x_test: Vectors, y_test: Labels, c: float, seed: int) -> float:
    return _percent(_fit(x, y, c, seed).score(x_test, y_test))


def _percent(share: float) -> float:
    return round(100 * float(share), 2)


def _ordered(rows: Sequence[Row]) -> Texts:
    """By number of tokens, then label, as SentEval sorts them: the order decides which folds examples fall into."""
    rows = sorted(rows, key=lambda row: (*(len(text.split()) for text in row[0]), row[1]))
    first, *second = ([_tokens(text) for text in side] for side in zip(*(texts for texts, _ in rows), strict=True))
    return Texts(first, np.array([label for _, label in rows], dtype=np.int64), *second)


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
