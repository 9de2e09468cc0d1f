"""The searched parameters of a study as axes: what plots draw along and importance measures over."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.tables.study import Study
from analysis.tables.trials import PARAM


@dataclass(frozen=True)
class Axis:
    """One searched parameter.

    values: of a category axis, as labels (`label`), in the order of the space file; empty for numbers.
    low, high: bounds of a number axis; log: searched on the logarithm. when: parameter -> labels under which it exists.
    """

    name: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def numeric(self) -> bool:
        return not self.values

    def positions(self, column: pd.Series[Any]) -> NDArray[np.float64]:
        """(n,) places on the axis: numbers (their log10 on a log axis), or numbers of labels; NaN if absent."""
        if self.numeric:
            numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.log10(numbers) if self.log else numbers
        places = {value: float(i) for i, value in enumerate(self.values)}
        return np.array([places.get(label(v), np.nan) for v in column], dtype=float)

    @property
    def bounds(self) -> tuple[float, float]:
        """The axis's ends in the unit of `positions`."""
        if not self.numeric:
            return 0.0, float(len(self.values) - 1)
        return (float(np.log10(self.low)), float(np.log10(self.high))) if self.log else (self.low, self.high)


def label(value: Any) -> str:
    """A parameter's value as people write it: 3e-05 for numbers, JSON for lists, null for nothing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "null"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, float, np.number)):
        return f"{float(value):g}"
    if isinstance(value, (list, tuple)):
        return json.dumps(list(value))
    return str(value)


def study_axes(study: Study, space: Mapping[str, Any] | None = None) -> tuple[Axis, ...]:
    """Axes of the searched parameters in the order of the space; without the space file, from the trials' values."""
    space = study.space if space is None else space
    params, points = space.get("params") or {}, space.get("points") or []
    axes = []
    for name in study.searched:
        column = study.trials[PARAM + name] if PARAM + name in study.trials else pd.Series(dtype=object)
        written = params.get(name)
        if isinstance(written, Mapping):
            axes.append(_written(name, written))
        else:
            values = [row[name] for row in points if name in row] or [v for v in column if v is not None]
            axes.append(_from_values(name, values))
    return tuple(axis for axis in axes if not axis.values or len(axis.values) > 1)


def _written(name: str, written: Mapping[str, Any]) -> Axis:
    when = {other: tuple(map(label, values)) for other, values in written.get("when", {}).items()}
    for kind in ("float", "int"):
        if kind in written:
            low, high = map(float, written[kind])
            return Axis(name, low=low, high=high, log=bool(written.get("log")), when=when)
    values = written.get("choice", written.get("grid", []))
    return Axis(name, values=tuple(dict.fromkeys(map(label, values))), when=when)


def _from_values(name: str, values: Sequence[Any]) -> Axis:
    """Few distinct values are categories, many numbers a range."""
    distinct = list(dict.fromkeys(map(label, values)))
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(distinct) <= 12 or len(numbers) < len(values):
        return Axis(name, values=tuple(sorted(distinct, key=_natural)))
    low, high = min(numbers), max(numbers)
    return Axis(name, low=low, high=high, log=low > 0 and high / low >= 100)


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), "")
    except ValueError:
        return (1, 0.0, text)


MOST = 6  # more parts than this are no labels that colours could tell apart


def pair_labels(data: Mapping[str, Any], name: str, gold: NDArray[np.floating]) -> Sequence[str] | None:
    """The label (column `subset`) of each dev pair of the set `name`, (n,).

    Nothing is downloaded. None if the file is not on this machine, has no labels, more than MOST, or other scores than
    `gold`: then it is not the file that the study evaluated.

    Args: data: the `data` part of a resolved space.
    """
    from trainables.contract.errors import DataError
    from trainables.data.catalogue import find_local, is_path, set_name
    from trainables.data.sets import load_pairs

    language, columns = str(data.get("language", "en")), data.get("columns")
    for written in data.get("dev") or ():
        if set_name(written) != name or not (is_path(written) or find_local(written, language, "dev")):
            continue
        try:
            pairs = load_pairs(written, "dev", language, columns)
        except DataError:
            return None
        if pairs.subset is None or len(set(pairs.subset)) > MOST or len(pairs) != len(gold):
            return None
        return pairs.subset if np.allclose(pairs.gold, gold, atol=1e-4) else None
    return None
