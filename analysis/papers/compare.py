"""The papers' result tables as data, and each beside our grid of it, cell by cell.

published.yaml has the numbers, links.yaml the spaces of ours that run their rows. Numbers are as printed, misprints
included; nothing is corrected, notes name what is doubtful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.errors import unknown
from analysis.reading.store import StoredRun
from analysis.tables.axes import label
from analysis.tables.study import Study
from analysis.tables.trials import PARAM, parameter
from search import schema
from search.schema import BEST_AT_EXAMPLES, UNTRAINED_PREFIX, is_dev
from trainables.contract.registry import declared

Params = Mapping[str, Any]
Entry = Mapping[str, Any]  # of published.yaml: columns, rows


@dataclass(frozen=True)
class PaperRow:
    """One row.

    params: what distinguishes our trials of that row within the grid; None for a row that the space does not run.
    cells: metric -> printed, x 100. untrained: the row is the encoder before training, scored by
    `analysis test --untrained`.
    """

    label: str
    params: Params | None
    cells: Mapping[str, float]
    untrained: bool = False


@dataclass(frozen=True)
class PaperTable:
    """A published table and the space that runs rows of it.

    name: of the comparison; parameter: searched along the rows, None if several are; elsewhere: label of a row
    that another space runs -> the name under which its runs are compared; unfit: metrics whose printed values are no
    target.
    """

    name: str
    space: str
    source: str
    table: str
    what: str
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...]
    unfit: frozenset[str]
    parameter: str | None
    elsewhere: dict[str, str]


@cache
def published() -> dict[str, Any]:
    """published.yaml."""
    return _read("published.yaml")


@cache
def _linked() -> dict[str, Any]:
    return _read("links.yaml")


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return content


def comparisons() -> dict[str, dict[str, Any]]:
    """Name of a comparison -> its entry of links.yaml."""
    found: dict[str, dict[str, Any]] = _linked()["comparisons"]
    return found


def columns(name: str) -> dict[str, str]:
    """Printed column -> our metric, of a named set of columns (links.yaml)."""
    found: dict[str, str] = _linked()["columns"][name]
    return found


def paper_table(name: str) -> PaperTable:
    """A published table with all its rows, those that a space of ours runs with their parameters.

    Raises: InputError for an unknown name.
    """
    if name not in comparisons():
        raise unknown("table", name, comparisons())
    link = comparisons()[name]
    source, table = link["source"], link["table"]
    entry = published()[source][table]
    elsewhere = {
        row.label: other
        for other, there in comparisons().items()
        if other != name and (there["source"], there["table"]) == (source, table)
        for row in _rows(entry, there)
        if row.params is not None
    }
    return PaperTable(
        name=name,
        space=link.get("space", name),
        source=source,
        table=table,
        what=entry.get("what", ""),
        rows=tuple(row for row in _rows(entry, link) if row.cells),
        notes=tuple(notes(source, table)),
        unfit=frozenset(_linked()["unfit"].get(source, ())),
        parameter=link.get("parameter"),
        elsewhere=elsewhere,
    )


def tables(name: str) -> list[PaperTable]:
    """All tables whose name begins with `name`: `edacse_table15` gives its three models.

    Raises: InputError if there is none.
    """
    found = [name] if name in comparisons() else [known for known in comparisons() if known.startswith(f"{name}_")]
    if not found:
        raise unknown("table", name, comparisons())
    return [paper_table(known) for known in found]


def notes(source: str, table: str) -> list[str]:
    """What is doubtful about a table: decisions, printed means that are not the mean of their cells, contradictions."""
    doubts = [note for note in _linked()["notes"] if note["source"] == source and table in note["tables"]]
    found = [f"{note['number']}: {note['text']}" for note in doubts]
    checks = published()["mean_checks"]
    for row in checks["rows"]:
        check = dict(zip(checks["columns"], row, strict=True))
        if (check["source"], check["table"], check["kind"]) == (source, table, "mismatch"):
            found.append(
                f"row {check['row']}: the printed mean {check['printed_mean']} is not the mean of its cells, "
                f"{check['recomputed_mean']:.2f}"
            )
    return found


def _rows(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    if "mode" in link:
        return _rows_of_post(entry, link["mode"])
    if "row" in link:
        return _rows_of_columns(entry, link)
    return _named_rows(entry, link)


def _named_rows(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    """The rows, the linked ones with the parameters that make them."""
    wanted = columns(link["columns"]) if isinstance(link["columns"], str) else link["columns"]
    rows, untrained, variants = (link.get(key, {}) for key in ("rows", "untrained", "variants"))
    if parameter := link.get("parameter"):
        values = link.get("values")
        rows = {
            str(row[0]): {parameter: (values or {}).get(row[0], row[0])}
            for row in entry["rows"]
            if values is None or row[0] in values or not isinstance(row[0], str)
        }
    names = Counter(str(row[0]) for row in entry["rows"])
    seen: Counter[str] = Counter()
    for row in entry["rows"]:
        name = str(row[0])
        seen[name] += 1
        if names[name] > 1 and f"{name} {row[1]}" in rows:
            name = f"{name} {row[1]}"
        elif seen[name] > 1:
            name = f"{name} ({seen[name]})"
        printed = zip(entry["columns"], row, strict=True)
        cells = {wanted[column]: float(v) for column, v in printed if column in wanted and v is not None}
        yield PaperRow(name, rows.get(name, untrained.get(name)), cells, untrained=name in untrained)
        if change := variants.get(name):
            what = ", ".join(f"{key} {value}" for key, value in change.items())
            yield PaperRow(f"{name} ({what})", {**rows[name], **change}, cells)


def _rows_of_columns(entry: Entry, link: Mapping[str, Any]) -> Iterator[PaperRow]:
    """One row whose columns are a parameter's values; the table's other rows as printed."""
    for row in sorted(entry["rows"], key=lambda row: row[0] != link["row"]):
        own = row[0] == link["row"]
        for value, cell in zip(entry["columns"][1:], row[1:], strict=True):
            label = f"{value:g}" if own else f"{row[0]} {value:g}"
            yield PaperRow(label, {link["parameter"]: value} if own else None, {link["metric"]: float(cell)})


def _rows_of_post(entry: Entry, mode: str | None) -> Iterator[PaperRow]:
    """The reproduction post's rows: learning rate, batch size and dropout; printed in [0, 1]."""
    for cells in entry["rows"]:
        row = dict(zip(entry["columns"], cells, strict=True))
        own = row.get("mode", mode) == mode
        params = {"learning_rate": row["lr"], "batch_size": row["batch"], "dropout": row["dropout"]}
        label = f"lr {row['lr']:g}, batch {row['batch']}, dropout {row['dropout']:g}"
        printed = {name: round(100 * row[name], 2) for name in ("stsb_dev", "stsb_test")}
        yield PaperRow(label if own else f"{row['mode']}: {label}", params if own else None, printed)


COLUMNS = ["row", "from", "metric", "published", "ours", "sd", "n", "difference", "target", "departs"]
PRINTED, RUN = "printed", "run"
UNCOMPARED = ("precision", "micro_batch", "checkpointing", "checkpoint_seconds")  # how a trial is run, not what it is
UNTRAINED = ("pooling", "max_words")  # what an encoder before training depends on
WITHOUT_STSB = "avg_without_stsb_test"  # as `analysis test` logs it


def compare(table: PaperTable, studies: Sequence[Study]) -> pd.DataFrame:
    """Every printed cell, and beside those of rows that the space runs our trials.

    Columns: row; from ("printed" only, "run" by this space, or the name of the table that another space runs); metric;
    published; ours, sd, n; difference; target; departs. All in points (x 100). `ours` is the mean over completed trials
    of the row's configuration that have the metric, `sd` their standard deviation (n - 1; NaN for one); difference =
    ours - published; NaN where we have nothing. Trials that depart from the paper's setting (another encoder, corpus,
    length, rule set, a smoke study) are never averaged with those that do not, nor with others: they stand in lines of
    their own, `departs` names in what. Dev metrics are those of the trial's best evaluation. `target` is False where
    the printed value is none (see notes). A metric of ours that the paper does not print has a NaN as `published`;
    only WITHOUT_STSB has the mean of the printed columns that are targets, where the printed mean is none.
    """
    setting = setting_of(table.space)
    values = [(study, _values(study)) for study in studies]
    selecting = list(dict.fromkeys(study.metric.name for study in studies))
    cells = []
    for row in table.rows:
        kind = RUN if row.params is not None else table.elsewhere.get(row.label, PRINTED)
        groups: dict[str, list[pd.DataFrame]] = {"": []}
        if row.params is not None:
            for study, frame in values:
                for departs, trials in _by_departure(setting, row, study).items():
                    groups.setdefault(departs, []).append(frame.loc[trials])
        published = {**row.cells, **_without_stsb(row, table)}
        extra = [] if row.params is None or row.untrained else [m for m in selecting if m not in published]
        for departs, parts in groups.items():
            mine = pd.concat(parts) if parts else pd.DataFrame()
            for metric in [*published, *extra]:
                stored = UNTRAINED_PREFIX + metric if row.untrained else metric
                found = 100 * mine[stored].dropna() if stored in mine else pd.Series(dtype=float)
                if row.untrained:
                    found = found.drop_duplicates()  # the same encoder, whichever trial it was scored with
                if departs and not len(found):
                    continue
                printed = published.get(metric, np.nan)
                ours = float(found.mean()) if len(found) else np.nan
                sd = float(found.std(ddof=1)) if len(found) > 1 else np.nan
                fits = metric not in table.unfit
                cells.append((row.label, kind, metric, printed, ours, sd, len(found), ours - printed, fits, departs))
    return pd.DataFrame(cells, columns=COLUMNS)


def _without_stsb(row: PaperRow, table: PaperTable) -> dict[str, float]:
    """The mean of a row's columns that are targets, where the STS-B column and so the printed mean are none (D17)."""
    if not {"stsb_test", "avg_test"} <= table.unfit & row.cells.keys():
        return {}
    return {WITHOUT_STSB: round(float(np.mean([v for m, v in row.cells.items() if m not in table.unfit])), 2)}


def _by_departure(setting: Setting, row: PaperRow, study: Study) -> dict[str, list[int]]:
    """What they depart in -> the row's trials of a study, by their place in `study.trials`."""
    hit = study.trials[_matches(study, row)]
    found: dict[str, list[int]] = {}
    for index, trial in zip(hit.index, hit.to_dict("records"), strict=True):
        apart = departures(setting, row, study, {str(name): value for name, value in trial.items()})
        found.setdefault(apart, []).append(index)
    return found


def _values(study: Study) -> pd.DataFrame:
    """Per trial, every metric that may be compared: test metrics, dev metrics at the best evaluation, the value."""
    runs = [run for run in study.stored_trials if BEST_AT_EXAMPLES in run.metrics]
    names = sorted({n for run in runs for n in run.metrics if is_dev(n)})
    dev: dict[tuple[str, str], float] = {}
    at = {run.run_id: run.metrics[BEST_AT_EXAMPLES] for run in runs}
    for run_id, metric, step, value in study.store.history(list(at), names):
        if at[run_id] == step:
            dev[run_id, metric] = value
    by_id = {run.run_id: _tests(run) for run in study.stored_trials}
    for (run_id, metric), value in dev.items():
        by_id[run_id][metric] = value
    table = pd.DataFrame([by_id[run_id] for run_id in study.trials["run_id"]], index=study.trials.index)
    return table.assign(**{study.metric.name: study.trials["value"]})


def _tests(run: StoredRun) -> dict[str, float]:
    found = {n: v for n, v in run.metrics.items() if n.endswith("_test") or n.startswith(UNTRAINED_PREFIX)}
    *four, average = columns("four").values()  # GCLSR's ablations average STS12 to STS15 only
    if all(np.isfinite(found.get(name, np.nan)) for name in four):
        found[average] = float(np.mean([round(100 * found[name], 2) for name in four])) / 100
    return found


def _matches(study: Study, row: PaperRow) -> pd.Series:
    """Completed trials whose parameters are the row's; a parameter that is not stored does not match."""
    hit = study.trials["stop"] == "completed"
    for name, value in (row.params or {}).items():
        column = PARAM + name
        same = study.trials[column].map(label) == label(value) if column in study.trials else False
        hit &= same
    return hit


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
    """The setting of `spaces/papers/<space>.yaml`: the method's defaults, its preset, the file's values."""
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
    package = Path(schema.__file__).parent  # installed, its ready spaces lie in it; in a source tree beside it
    folder = next(f for f in (package / "ready_spaces", package.parent / "spaces") if f.is_dir())
    own: dict[str, Any] = yaml.safe_load((folder / "papers" / f"{space}.yaml").read_text(encoding="utf-8"))
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
