"""The setting under which a paper grid runs, and in what a trial of ours departs from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from analysis.papers.rows import PaperRow
from analysis.tables.axes import label
from analysis.tables.study import Study
from analysis.tables.trials import PARAM, parameter
from trainables.contract.registry import declared

UNCOMPARED = ("precision", "micro_batch", "checkpointing", "checkpoint_seconds")  # how a trial is run, not what it is
UNTRAINED = ("pooling", "max_words")  # what an encoder before training depends on


@dataclass(frozen=True)
class Setting:
    """What a space of `spaces/papers` fixes: `values` by hyperparameter, and the values its grid or points allow."""

    encoder: str
    train: str
    values: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]] = ()
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def allowed(self, row: PaperRow) -> dict[str, set[str]]:
        """Hyperparameter -> the labels that a trial of the row may have in it."""
        fitting = [p for p in self.points if all(p.get(k, v) == v for k, v in (row.params or {}).items())]
        found = {name: {label(value)} for name, value in self.values.items()}
        for name, values in self.grid.items():
            found[name] = {*found.get(name, set()), *map(label, values)}
        for point in fitting:
            found |= {name: {label(value)} for name, value in point.items()}
        return found | {name: {label(value)} for name, value in (row.params or {}).items()}


@cache
def setting_of(space: str) -> Setting:
    """The setting of `spaces/papers/<space>.yaml`: the method's defaults, its preset, what the file says."""
    written = _written(space)
    declaration = declared(written["method"])
    preset = written.get("preset") or declaration.preset_for(written["encoder"])
    params = written.get("params", {})
    constants = {name: value for name, value in params.items() if not isinstance(value, Mapping)}
    values = declaration.values(None if preset == "none" else preset) | constants | written.get("train", {})
    return Setting(
        encoder=written["encoder"],
        train=written["data"]["train"],
        values=values,
        points=written.get("points", ()),
        grid={name: value["grid"] for name, value in params.items() if isinstance(value, Mapping)},
    )


def _written(space: str) -> dict[str, Any]:
    """A space file over what it extends, section by section."""
    text = (files("spaces") / "papers" / f"{space}.yaml").read_text(encoding="utf-8")
    own: dict[str, Any] = yaml.safe_load(text)
    if "extends" not in own:
        return own
    base = _written(own.pop("extends").removesuffix(".yaml"))
    if "points" in own:
        base.pop("params", None)
    for key, value in own.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, Mapping) else value
    return base


def departures(setting: Setting, row: PaperRow, study: Study, trial: Mapping[str, Any]) -> str:
    """In what a trial departs from the setting of a printed row: "encoder builtin:tiny, max_length 24"; "" in nothing.

    What a study does not have stored is not compared. A dev set that selected is not part of a setting.
    """
    stored = study.stored.params
    found = []
    if _short(stored.get("encoder", setting.encoder)) != _short(setting.encoder):
        found.append(f"encoder {stored['encoder']}")
    if stored.get("data.train", setting.train) != setting.train:
        found.append(f"trained on {stored['data.train']}")
    if parser := parameter(stored.get("data.parser")):
        found.append(f"parser {parser}")
    for name, allowed in setting.allowed(row).items():
        if name in UNCOMPARED or PARAM + name not in trial or (row.untrained and name not in UNTRAINED):
            continue
        value = label(trial[PARAM + name])
        if value not in allowed:
            found.append(f"{name} {value}")
    return ", ".join(found)


def _short(encoder: str) -> str:
    """An encoder without the folder it lies in and without its revision."""
    return encoder.split("@")[0].rstrip("/").rsplit("/", 1)[-1]
