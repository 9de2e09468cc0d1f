"""The model card that travels with an exported checkpoint, with the front matter that hubs read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import yaml

from analysis.checkpoints.choice import at_hub
from analysis.errors import AnalysisError
from analysis.reading.store import StoredRun
from analysis.statistics.pairs import spearman_influence
from analysis.statistics.selection import NORMAL
from analysis.statistics.verdict import study_verdict
from analysis.tables.record import cost, environment, openings, scores_by_configuration
from analysis.tables.study import Study
from analysis.tables.trials import PARAM
from analysis.writing.answer import value_unit
from search.schema import BEST_PREFIX, DEV_SUFFIX, GOLD_SUFFIX, SHOWN_SCALE, TEST_SUFFIX, named, stored
from trainables.contract.registry import declared
from trainables.contract.remote_code import runs_code, without_code
from trainables.contract.trial import (
    HELD,
    QUERIES_SUFFIX,
    RETRIEVAL_MEASURES,
    at_width,
    metric_parts,
    retrieval_measure,
)
from trainables.data.catalogue import EDACSE, EDACSE_PARTS, set_name

MTEB_PREFIX = "mteb_"
_TYPES = dict(zip(RETRIEVAL_MEASURES, ("ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_100"), strict=True))


@dataclass(frozen=True)
class About:
    """What a card states about the network.

    dimensions: of its vectors, None = only its script defines it; longest: tokens that it reads, None = words of any
    number, or not known; licence: identifier as the hub has them ("apache-2.0"), None = unknown; loads: whether
    SentenceTransformer loads what a script wrote.
    """

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
    run = next(run for run in study.stored_trials if run.run_id == trial["run_id"])
    scored = scores_by_configuration([run]).to_dict("records")
    tests = [Result(row["metric"], row["mean"], row["low"], row["high"]) for row in scored]
    bounds = _bounds(study, run.run_id)
    corrected = None
    with suppress(AnalysisError):  # no trial has been completed
        verdict = study_verdict(study)
        corrected = verdict.expected if verdict.best == trial["point"] else None
    results = [*_dev_results(study, trial, run, bounds, corrected), *tests]
    base = hub_encoder(checkpoint)
    front = front_matter(spec, name, about.licence, results, own_loader=bool(own_loader), base=base and base[0])
    trust = ", trust_remote_code=True" if runs_code(spec["encoder"]) else ""
    use = (
        own_loader
        or "from sentence_transformers import SentenceTransformer\n\n"
        f'vectors = SentenceTransformer("path/to/this/folder"{trust}).encode(["a sentence"])'
    )
    wide = f"of {about.dimensions:,} dimensions " if about.dimensions else ""
    cut = f" A text is read up to {about.longest:,} tokens." if about.longest else ""
    stands = {known: f" ({where})" for known, (where, _) in repositories(spec["data"]).items()}
    revisions = [
        (known + stands.get(known.removesuffix("_dev"), ""), r) for known, r in checkpoint.get("revisions", {}).items()
    ]
    revisions += [(f"encoder {base[0]}", base[1])] if base else []
    bibtex = citation(spec["method"], method.paper)
    batch = trial.get(PARAM + "batch_size")
    own_cost = f"This trial: {trial['seconds']:.0f} s of training and evaluation"
    own_cost += f", batch size {batch}" if batch else ""
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip()}\n---",
        f"# {study.name}, trial {trial['trial']}",
        f"Sentence vectors {wide}by {_trained(spec)}, chosen by `{spec['metric']}` among {len(study.trials)} trials. "
        f"Compare vectors by cosine.{cut}",
        f"```python\n{use}\n```",
        "## Scores\n\n" + _scores(study, trial, bounds, corrected, tests, shown_scale(study.metric.name, spec)),
        "## Configuration\n\n" + _table(("hyperparameter", "value"), [(k, _written(v)) for k, v in params.items()]),
        "## Data\n\n" + _table(("set", "revision"), revisions),
        "## Licence\n\n"
        + (f"{about.licence}. " if about.licence else "Not known: no card of the encoder was read. ")
        + "The data sets have the licences of their owners.",
        f"## Citation\n\n```bibtex\n{bibtex}\n```" if bibtex else "",
        "## Cost\n\n" + "\n".join(f"- {line}" for line in [own_cost, *cost(study).lines()]),
        "## Environment\n\n" + _table(("what", "value"), list(environment(study).items())),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def hub_encoder(checkpoint: Mapping[str, Any]) -> tuple[str, str] | None:
    """Hub id and commit of the encoder that a trial started from; None of a folder, whatever it is called.

    Args: checkpoint: trial.json.
    """
    name, _, asked = without_code(str(checkpoint["spec"]["encoder"])).partition("@")
    commit = (checkpoint.get("encoder") or {}).get("commit") or (asked if re.fullmatch("[0-9a-f]{40}", asked) else "")
    folder = name.startswith(("builtin:", "/", ".", "~")) or name.count("/") > 1 or name.endswith(commit)
    return None if not commit or folder else (name, commit)


def _trained(spec: Mapping[str, Any]) -> str:
    """What trained what on what: `simcse` on an encoder, trained on a corpus."""
    script = f" `{PurePath(spec['script']['file']).name}`" if spec.get("script") else ""
    encoder = f" on `{spec['encoder']}`" if spec["encoder"] else ""
    return f"{spec['method']}{script}{encoder}" + (f", trained on `{data}`" if (data := spec["data"]["train"]) else "")


def _dev_results(
    study: Study, trial: pd.Series[Any], run: StoredRun, bounds: tuple[float, float], corrected: float | None
) -> list[Result]:
    """Of this checkpoint: every dev metric, that which selected first, with what its configuration has on other seeds.

    Args: corrected: for selection; None of a configuration that is not the best.
    """
    name, selected = study.metric.name, BEST_PREFIX + stored(study.metric.name)
    point = study.points[study.points["point"] == trial["point"]].iloc[0]
    of, fresh = "of the configuration", "fresh " if point["confirmed"] else ""
    found = [Result(name, float(trial["value"]), *bounds)]
    if point["n"] > 1:
        found.append(Result(name, float(point["value"]), of=f"mean {of} over {point['n']} {fresh}seeds"))
    if corrected is not None:
        found.append(Result(name, corrected, of=f"expected {of} on other seeds, corrected for selection"))
    return found + [
        Result(named(name.removeprefix(BEST_PREFIX)), value)
        for name, value in sorted(run.metrics.items())
        if name.startswith(BEST_PREFIX) and at_width(name)[0].endswith(DEV_SUFFIX) and name != selected
        and not name.startswith(BEST_PREFIX + "mean_")
    ]  # fmt: skip


def _scores(
    study: Study, trial: pd.Series[Any], bounds: tuple[float, float], corrected: float | None, tests: Sequence[Result],
    scale: float,
) -> str:  # fmt: skip
    def number(value: float) -> str:
        return f"{scale * value:.2f}" if scale == SHOWN_SCALE else f"{value:.4g}"

    point = study.points[study.points["point"] == trial["point"]].iloc[0]
    over = f", standard deviation {number(point['sd'])}" if point["n"] > 1 else ""
    fresh = " on seeds that did not select it" if point["confirmed"] else ""
    seeds = ", ".join(str(seed) for seed in point["seeds"])
    lines = [
        f"- `{study.metric.name}` of this checkpoint: {number(trial['value'])}{_interval(*bounds)}, seed "
        f"{trial['seed']}, after {trial['examples']:,.0f} training examples.",
        f"- The configuration's mean{fresh}: {number(point['value'])}, {point['n']} seed"
        f"{'s' if point['n'] > 1 else ''} ({seeds}){over}.",
    ]
    if corrected is not None:
        lines.append(f"- Expected on other seeds, corrected for selection: {number(corrected)}.")
    lines += [f"- `{r.metric}`: {SHOWN_SCALE * r.value:.2f}{_interval(r.low, r.high)}" for r in tests]
    lines += [f"- Test sets opened: {line}" for line in openings(study.stored)] or ["- Test sets: not opened."]
    intervals = "Intervals: 95 % over pairs or queries, not over seeds."
    unit = value_unit(study) if scale == SHOWN_SCALE else f"{study.metric.name} is given as it was reported."
    return "\n".join(lines) + f"\n\n{unit} {intervals}"


def _interval(low: float, high: float) -> str:
    return f" ({SHOWN_SCALE * low:.2f} to {SHOWN_SCALE * high:.2f})" if np.isfinite(low) else ""


def _bounds(study: Study, run_id: str) -> tuple[float, float]:
    """95 % interval over dev pairs or queries of a single-set metric; NaN where they are not stored."""
    arrays = study.similarities(run_id) or {}
    part = study.metric.parts[0]
    whole = at_width(part)[0]
    stem, cut = whole.removesuffix(DEV_SUFFIX), part.removeprefix(whole)
    gold, queries = arrays.get(stem + GOLD_SUFFIX), arrays.get(stem + QUERIES_SUFFIX + cut)
    if len(study.metric.parts) > 1:
        return np.nan, np.nan
    if queries is not None:
        value, influence = float(queries.mean()), queries - queries.mean()
    elif part in arrays and gold is not None:
        value, influence = spearman_influence(arrays[part], gold)
    else:
        return np.nan, np.nan
    half = NORMAL * float(np.sqrt(np.var(influence) / len(influence)))
    return value - half, value + half


def _written(value: Any) -> str:
    """As a space file writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _table(head: tuple[str, str], rows: list[tuple[str, Any]]) -> str:
    if not rows:
        return "Not stored."
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in rows])


@dataclass(frozen=True)
class Result:
    """One value of a model. metric: its stored name; low, high: 95 % interval, NaN where there is none; of: what has
    it, if not this checkpoint."""

    metric: str
    value: float
    low: float = float("nan")
    high: float = float("nan")
    of: str = ""


def repositories(data: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    """The sets of a trial's `data` that a hub has: short name -> (repository, commit), training data first."""
    language = str(data.get("language", "en"))
    names = [part.strip() for part in str(data["train"]).split("+")]
    if EDACSE in names:
        names += EDACSE_PARTS
    found: dict[str, tuple[str, str | None]] = {}
    for name in (*names, *data["dev"]):
        if place := at_hub(name, language):
            found[set_name(name)] = place
    return found


def front_matter(
    spec: Mapping[str, Any],
    name: str,
    licence: str | None,
    results: list[Result],
    *,
    own_loader: bool,
    base: str | None = None,
) -> dict[str, Any]:
    """The front matter of a card.

    Args:
        spec: of the trial. name: of the model. licence: identifier as the hub has them, None = not known.
        own_loader: whether the model comes with a loader of its own. base: hub id of the encoder, if it has one.
    """
    data = spec["data"]
    front: dict[str, Any] = {
        "language": data.get("language", "en"),
        **({"license": licence} if licence else {}),
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-similarity", "feature-extraction", spec["method"]]
        + (["sentence-transformers"] if not own_loader else []),
    }
    if not own_loader:
        front |= {"library_name": "sentence-transformers"}
        front |= {"base_model": base} if base else {}
    if there := repositories(data):
        front["datasets"] = list(dict.fromkeys(repository for repository, _ in there.values()))
    if index := [_entry(result, spec) for result in results if np.isfinite(result.value)]:
        front["model-index"] = [{"name": name, "results": index}]
    return front


def shown_scale(metric: str, spec: Mapping[str, Any]) -> float:
    """What a card multiplies a metric by: 100 for correlations, retrieval measures and accuracies; 1 for what a script
    or an evaluation of a plugin measures, whose range is unknown here.

    >>> shown_scale("stsb_dev", {"data": {"dev": ["stsb"]}}), shown_scale("loss_dev", {"data": {"dev": ["stsb"]}})
    (100.0, 1.0)
    """
    if spec.get("script"):
        return 1.0
    known = {set_name(name) for name in spec["data"]["dev"]}
    ends = ("", *(f"_{measure}" for measure in RETRIEVAL_MEASURES))
    measured = {f"{name}{held}{end}{DEV_SUFFIX}" for name in known for held in ("", HELD) for end in ends}
    parts = [at_width(part)[0] for part in metric_parts(metric) if not part.endswith(TEST_SUFFIX)]
    return SHOWN_SCALE if measured.issuperset(parts) else 1.0


def _entry(result: Result, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the index, with the interval in its name: the format has no field for it."""
    data, scale = spec["data"], shown_scale(result.metric, spec)
    split, retrieved = "test" if result.metric.endswith(TEST_SUFFIX) else "dev", retrieval_measure(result.metric)
    whole, width = at_width(result.metric)
    stem = whole.removesuffix(DEV_SUFFIX).removesuffix(TEST_SUFFIX)
    task, kind, what, dataset = "sentence-similarity", "cosine_spearman", "Spearman", stem
    if len(metric_parts(result.metric)) > 1:
        what = kind = "mean"
    elif scale == 1:
        what = kind = result.metric
    elif retrieved:
        dataset, _, measure = stem.rpartition("_")
        task, kind, what = "information-retrieval", _TYPES[measure], retrieved
    elif stem.startswith(MTEB_PREFIX):
        task, kind, what, dataset = "mteb", "main_score", "MTEB's main score", stem.removeprefix(MTEB_PREFIX)
    elif stem.startswith("transfer_"):
        task, kind, what = "text-classification", "accuracy", "accuracy"
    elif stem.endswith(("_mean", "_wmean")) or stem.startswith("avg"):
        what = "mean of Spearman"
    known = at_hub(dataset, str(data.get("language", "en"))) or (dataset, None)
    repository, commit = repositories(data).get(dataset, known)
    what += f" of the first {width} dimensions" if width else ""
    what += " x 100" if scale == SHOWN_SCALE else ""
    what += f", {result.of}" if result.of else ""
    if scale == SHOWN_SCALE and np.isfinite(result.low):
        what += f" (95 %: {scale * result.low:.2f} to {scale * result.high:.2f})"
    about = {"name": f"{dataset} {split}", "type": repository, "split": split}
    return {
        "task": {"type": task},
        "dataset": about | ({"revision": commit} if commit else {}),
        "metrics": [{"type": kind, "value": round(scale * result.value, 4), "name": what}],
    }


def citation(method: str, paper: str) -> str:
    """BibTeX of `Declaration.paper`, "" where it names none.

    >>> print(citation("simcse", "SimCSE: Simple Contrastive Learning, arXiv:2104.08821"))
    @misc{simcse,
      title = {SimCSE: Simple Contrastive Learning},
      eprint = {2104.08821},
      archiveprefix = {arXiv}
    }
    """
    title, _, where = paper.rpartition(", ")
    kind, _, number = where.partition(":")
    if not title or not number:
        return ""
    fields = {"title": title} | ({"eprint": number, "archiveprefix": "arXiv"} if kind == "arXiv" else {kind: number})
    lines = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items())
    return f"@misc{{{method},\n{lines}\n}}"
