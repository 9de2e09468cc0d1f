"""What model hubs read of a card: its front matter, with the data sets by their names there and an index of results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.schema import DEV_SUFFIX, TEST_SUFFIX
from trainables.contract.trial import RETRIEVAL_MEASURES, metric_parts, retrieval_measure
from trainables.data.catalogue import EDACSE, EDACSE_PARTS, HUB, hub_name, is_hub, set_name
from trainables.data.retrieval import NANO

MTEB_PREFIX = "mteb_"
_TYPES = dict(zip(RETRIEVAL_MEASURES, ("ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_100"), strict=True))


@dataclass(frozen=True)
class Result:
    """One value of a model. metric: its stored name; low, high: 95 % interval, NaN where there is none."""

    metric: str
    value: float
    low: float = float("nan")
    high: float = float("nan")


def repositories(data: Mapping[str, Any]) -> dict[str, tuple[str, str | None]]:
    """The sets of a trial's `data` that a hub has: short name -> (repository, commit), training data first."""
    language = str(data.get("language", "en"))
    names = [part.strip() for part in str(data["train"]).split("+")]
    if EDACSE in names:
        names += EDACSE_PARTS
    found: dict[str, tuple[str, str | None]] = {}
    for name in (*names, *data["dev"]):
        if name in NANO or is_hub(name):
            where = hub_name(f"hub:{NANO[name]}" if name in NANO else name)
            found[set_name(name)] = (where.repo, where.commit)
        elif hub := HUB.get((language, name)):
            found[name] = (hub.repo, hub.revision)
    return found


def front_matter(
    spec: Mapping[str, Any], name: str, licence: str | None, results: list[Result], *, own_loader: bool
) -> dict[str, Any]:
    """The front matter of a card.

    Args:
        spec: of the trial. name: of the model. licence: identifier as the hub has them, None = not known.
        own_loader: whether the model comes with a loader of its own.
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
        if spec["encoder"] and not spec["encoder"].startswith(("builtin:", "/", ".", "~")):
            front["base_model"] = spec["encoder"].split("@")[0]
    if there := repositories(data):
        front["datasets"] = list(dict.fromkeys(repository for repository, _ in there.values()))
    measured = _by_script if spec.get("script") else _entry
    if index := [measured(result, data) for result in results if np.isfinite(result.value)]:
        front["model-index"] = [{"name": name, "results": index}]
    return front


def _by_script(result: Result, data: Mapping[str, Any]) -> dict[str, Any]:
    """A row of what a script measured, which alone knows what it is."""
    row = _entry(result, data)
    row["metrics"] = [{"type": result.metric, "value": round(100 * result.value, 4), "name": f"{result.metric} x 100"}]
    return row


def _entry(result: Result, data: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the index, with the interval in its name: the format has no field for it."""
    split, retrieved = "test" if result.metric.endswith(TEST_SUFFIX) else "dev", retrieval_measure(result.metric)
    stem = result.metric.removesuffix(DEV_SUFFIX).removesuffix(TEST_SUFFIX)
    task, kind, what, dataset = "sentence-similarity", "cosine_spearman", "Spearman x 100", stem
    if len(metric_parts(result.metric)) > 1:
        what, kind = "mean x 100", "mean"
    elif retrieved:
        dataset, _, measure = stem.rpartition("_")
        task, kind, what = "information-retrieval", _TYPES[measure], f"{retrieved} x 100"
    elif stem.startswith(MTEB_PREFIX):
        task, kind, what, dataset = "mteb", "main_score", "MTEB's main score x 100", stem.removeprefix(MTEB_PREFIX)
    elif stem.startswith("transfer_"):
        task, kind, what = "text-classification", "accuracy", "accuracy x 100"
    elif stem.endswith(("_mean", "_wmean")) or stem.startswith("avg"):
        what = "mean of Spearman x 100"
    hub = HUB.get((str(data.get("language", "en")), dataset))
    at_hub = (hub.repo, hub.revision) if hub else (dataset, None)
    repository, commit = repositories(data).get(dataset, at_hub)
    if np.isfinite(result.low):
        what += f" (95 %: {100 * result.low:.2f} to {100 * result.high:.2f})"
    about = {"name": f"{dataset} {split}", "type": repository, "split": split}
    return {
        "task": {"type": task},
        "dataset": about | ({"revision": commit} if commit else {}),
        "metrics": [{"type": kind, "value": round(100 * result.value, 4), "name": what}],
    }


def citation(method: str, paper: str) -> str:
    """BibTeX of `Declaration.paper`, "" where it says nothing.

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
