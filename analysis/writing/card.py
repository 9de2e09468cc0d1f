"""The model card that travels with an exported checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.statistics.correlation import spearman_influence
from analysis.tables.cost import cost
from analysis.tables.reproduction import environment
from analysis.tables.study import Study
from analysis.tables.test_scores import openings, scores_by_configuration
from analysis.tables.trials import PARAM
from analysis.writing.state_text import value_unit
from search.schema import DEV_SUFFIX, GOLD_SUFFIX
from trainables.contract.knobs import values
from trainables.contract.metric_names import QUERIES_SUFFIX
from trainables.contract.registry import declared

Z = 1.96  # of a two-sided 95 % interval


def model_card(study: Study, trial: pd.Series[Any], config: Any, checkpoint: Mapping[str, Any]) -> str:
    """Markdown with the front matter that model hubs read.

    Args:
        trial: row of `study.trials`. config: its hyperparameters. checkpoint: its trial.json.
    """
    spec = checkpoint["spec"]
    own_loader = declared(spec["method"]).usage
    language = spec["data"].get("language", "en")
    front: dict[str, Any] = {
        "language": language,
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-similarity", "feature-extraction", spec["method"]]
        + (["sentence-transformers"] if not own_loader else []),
    }
    if not own_loader:
        front |= {"library_name": "sentence-transformers"}
        if not spec["encoder"].startswith(("builtin:", "/", ".")):
            front["base_model"] = spec["encoder"].split("@")[0]
    use = (
        own_loader
        or "from sentence_transformers import SentenceTransformer\n\n"
        'vectors = SentenceTransformer("path/to/this/folder").encode(["a sentence"])'
    )
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False).strip()}\n---",
        f"# {study.name}, trial {trial['trial']}",
        f"Sentence vectors by {spec['method']} on `{spec['encoder']}`, trained on `{spec['data']['train']}`, chosen by "
        f"`{spec['metric']}` among {len(study.trials)} trials. Compare vectors by cosine.",
        f"```python\n{use}\n```",
        "## Scores\n\n" + _scores(study, trial),
        "## Configuration\n\n"
        + _table(("hyperparameter", "value"), [(k, _written(v)) for k, v in values(config).items()]),
        "## Data\n\n" + _table(("set", "revision"), list(checkpoint.get("revisions", {}).items())),
        "## Cost\n\n" + "\n".join(f"- {line}" for line in [_own_cost(trial), *cost(study).lines()]),
        "## Environment\n\n" + _table(("what", "value"), list(environment(study).items())),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
    """95 % interval over dev pairs or queries of a single-set metric, empty where their values are not stored."""
    arrays = study.similarities(trial["run_id"]) or {}
    part = study.metric.parts[0]
    gold, queries = (arrays.get(part.removesuffix(DEV_SUFFIX) + end) for end in (GOLD_SUFFIX, QUERIES_SUFFIX))
    if len(study.metric.parts) > 1:
        return ""
    if queries is not None:
        value, influence = float(queries.mean()), queries - queries.mean()
    elif part in arrays and gold is not None:
        value, influence = spearman_influence(arrays[part], gold)
    else:
        return ""
    half = Z * float(np.sqrt(np.var(influence) / len(influence)))
    return f" ({study.metric.scale * (value - half):.2f} to {study.metric.scale * (value + half):.2f})"


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
