"""The model card that travels with an exported checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.statistics.pairs import spearman_influence
from analysis.statistics.selection import NORMAL
from analysis.tables.record import cost, environment, openings, scores_by_configuration
from analysis.tables.study import Study
from analysis.tables.trials import PARAM
from analysis.writing.card_front import Result, citation, front_matter, repositories
from analysis.writing.state_text import value_unit
from search.schema import BEST_PREFIX, DEV_SUFFIX, GOLD_SUFFIX, stored
from trainables.contract.registry import declared
from trainables.contract.trial import QUERIES_SUFFIX


@dataclass(frozen=True)
class About:
    """What a card says of the network. dimensions: of its vectors, None = only the script knows that made it; longest:
    tokens that it reads, None = words of any number, or not known; licence: identifier as the hub has them
    ("apache-2.0"), None = nobody said; loads: whether SentenceTransformer loads what a script wrote."""

    dimensions: int | None = None
    longest: int | None = None
    licence: str | None = None
    loads: bool = True


def model_card(
    study: Study, trial: pd.Series[Any], params: Mapping[str, Any], checkpoint: Mapping[str, Any], about: About
) -> str:
    """Markdown with the front matter that model hubs read.

    Args:
        trial: row of `study.trials`. params: its hyperparameters by name. checkpoint: its trial.json.
    """
    spec = checkpoint["spec"]
    method = declared(spec["method"])
    name = f"{study.name}-{trial['trial']}"
    own_loader = method.usage or ("" if about.loads else "# as the script that wrote it loads it")
    front = front_matter(spec, name, about.licence, _results(study, trial), own_loader=bool(own_loader))
    use = (
        own_loader
        or "from sentence_transformers import SentenceTransformer\n\n"
        'vectors = SentenceTransformer("path/to/this/folder").encode(["a sentence"])'
    )
    wide = f"of {about.dimensions:,} dimensions " if about.dimensions else ""
    cut = f" A text is read up to {about.longest:,} tokens." if about.longest else ""
    stands = {known: f" ({where})" for known, (where, _) in repositories(spec["data"]).items()}
    revisions = [
        (known + stands.get(known.removesuffix("_dev"), ""), r) for known, r in checkpoint.get("revisions", {}).items()
    ]
    bibtex = citation(spec["method"], method.paper)
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip()}\n---",
        f"# {study.name}, trial {trial['trial']}",
        f"Sentence vectors {wide}by {_trained(spec)}, chosen by `{spec['metric']}` among {len(study.trials)} trials. "
        f"Compare vectors by cosine.{cut}",
        f"```python\n{use}\n```",
        "## Scores\n\n" + _scores(study, trial),
        "## Configuration\n\n" + _table(("hyperparameter", "value"), [(k, _written(v)) for k, v in params.items()]),
        "## Data\n\n" + _table(("set", "revision"), revisions),
        "## Licence\n\n"
        + (f"{about.licence}. " if about.licence else "Not stated for the encoder that it started from. ")
        + "The data keep those of their owners.",
        f"## Citation\n\n```bibtex\n{bibtex}\n```" if bibtex else "",
        "## Cost\n\n" + "\n".join(f"- {line}" for line in [_own_cost(trial), *cost(study).lines()]),
        "## Environment\n\n" + _table(("what", "value"), list(environment(study).items())),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _trained(spec: Mapping[str, Any]) -> str:
    """What trained what on what: `simcse` on an encoder, trained on a corpus."""
    script = f" `{PurePath(spec['script']['file']).name}`" if spec.get("script") else ""
    encoder = f" on `{spec['encoder']}`" if spec["encoder"] else ""
    return f"{spec['method']}{script}{encoder}" + (f", trained on `{data}`" if (data := spec["data"]["train"]) else "")


def _results(study: Study, trial: pd.Series[Any]) -> list[Result]:
    """Of this checkpoint: every dev metric, that which selected first, and what test sets were opened."""
    run = next(run for run in study.stored_trials if run.run_id == trial["run_id"])
    low, high = _bounds(study, trial)
    scale = study.metric.scale / 100
    results = [Result(study.metric.name, scale * float(trial["value"]), low / 100, high / 100)]
    stored_name = stored(study.metric.name)
    results += [
        Result(name.removeprefix(BEST_PREFIX), value)
        for name, value in sorted(run.metrics.items())
        if name.startswith(BEST_PREFIX) and name.endswith(DEV_SUFFIX) and name != BEST_PREFIX + stored_name
        and not name.startswith(BEST_PREFIX + "mean_")
    ]  # fmt: skip
    rows = scores_by_configuration([run]).to_dict("records")
    return results + [Result(row["metric"], row["mean"], row["low"], row["high"]) for row in rows]


def _scores(study: Study, trial: pd.Series[Any]) -> str:
    point = study.points[study.points["point"] == trial["point"]].iloc[0]
    scale = study.metric.scale
    over = f", standard deviation {scale * point['sd']:.2f}" if point["n"] > 1 else ""
    fresh = " on seeds that did not select it" if point["confirmed"] else ""
    seeds = ", ".join(str(seed) for seed in point["seeds"])
    lines = [
        f"- `{study.metric.name}` of this checkpoint: {scale * trial['value']:.2f}{_interval(study, trial)}, seed "
        f"{trial['seed']}, after {trial['examples']:,.0f} training examples.",
        f"- The configuration's mean{fresh}: {scale * point['value']:.2f}, {point['n']} seed"
        f"{'s' if point['n'] > 1 else ''} ({seeds}){over}.",
    ]
    run = next(run for run in study.stored_trials if run.run_id == trial["run_id"])
    for row in scores_by_configuration([run]).to_dict("records"):
        between = f" ({100 * row['low']:.2f} to {100 * row['high']:.2f})" if np.isfinite(row["low"]) else ""
        lines.append(f"- `{row['metric']}`: {100 * row['mean']:.2f}{between}")
    opened = openings(study.stored)
    lines += [f"- Test sets opened: {line}" for line in opened] or ["- Test sets: not opened."]
    intervals = "Intervals: 95 % over pairs or queries, not over seeds."
    return "\n".join(lines) + f"\n\n{value_unit(study)} {intervals}"


def _interval(study: Study, trial: pd.Series[Any]) -> str:
    low, high = _bounds(study, trial)
    return f" ({low:.2f} to {high:.2f})" if np.isfinite(low) else ""


def _bounds(study: Study, trial: pd.Series[Any]) -> tuple[float, float]:
    """95 % interval over dev pairs or queries of a single-set metric, as shown; NaN where they are not stored."""
    arrays = study.similarities(trial["run_id"]) or {}
    part = study.metric.parts[0]
    gold, queries = (arrays.get(part.removesuffix(DEV_SUFFIX) + end) for end in (GOLD_SUFFIX, QUERIES_SUFFIX))
    if len(study.metric.parts) > 1:
        return np.nan, np.nan
    if queries is not None:
        value, influence = float(queries.mean()), queries - queries.mean()
    elif part in arrays and gold is not None:
        value, influence = spearman_influence(arrays[part], gold)
    else:
        return np.nan, np.nan
    half = NORMAL * float(np.sqrt(np.var(influence) / len(influence)))
    return study.metric.scale * (value - half), study.metric.scale * (value + half)


def _own_cost(trial: pd.Series[Any]) -> str:
    batch = trial.get(PARAM + "batch_size")
    return f"This trial: {trial['seconds']:.0f} s of training and evaluation, batch size {batch}"


def _written(value: Any) -> str:
    """As a space file writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> str:
    if not rows:
        return "Not stored."
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in rows])
