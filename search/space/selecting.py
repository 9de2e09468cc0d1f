"""What selects: the metric section."""

from __future__ import annotations

import re
from collections.abc import Mapping

from search.schema import BEST_PREFIX, UNTRAINED_PREFIX
from search.space.nodes import Node
from search.space.outside import evaluation_metrics
from search.space.problems import Problems
from search.space.sections import Data, Metric, entries, text
from search.space.space import Space
from trainables.contract.declaration import Declaration
from trainables.contract.trial import DEV_SUFFIX, HELD, metric_parts, normal_metric
from trainables.data.catalogue import set_name
from trainables.data.retrieval import dev_metrics, is_retrieval


def read_metric(
    node: Node | None, data: Data | None, method: Declaration | None, top: Node, problems: Problems
) -> Metric | None:
    """The metric section; its name must be made of the listed dev sets, or of what a script is to report."""
    if node is None:
        problems.add(top.where, "metric", "missing; expected a mapping with name, such as stsb_dev")
        return None
    before = len(problems.found)
    given = entries(node, "metric", ("name", "mode", "holdout"), problems)
    mode = text(given["mode"], "metric.mode", problems) if "mode" in given else "max"
    if mode not in ("max", "min", None):
        problems.add(given["mode"].where, "metric.mode", f"expected max or min, got {mode!r}")
    holdout = _holdout(given.get("holdout"), data, problems)
    name = text(given["name"], "metric.name", problems) if "name" in given else None
    if "name" not in given and isinstance(node.value, dict):
        problems.add(node.where, "metric.name", "missing")
    if name and method is not None and method.scripted:
        return _of_script(name, mode, given, problems) if len(problems.found) == before else None
    if name and data:
        legal = [m for dev_set in data.dev for m in dev_metrics(dev_set)] + evaluation_metrics(data.evaluations or ())
        splittable = [dev_metrics(dev_set)[0] for dev_set in data.dev if not is_retrieval(dev_set)]
        try:
            parts = metric_parts(name)
        except ValueError as error:
            problems.add(given["name"].where, "metric.name", str(error).removeprefix("metric: "))
            return None
        for part in dict.fromkeys(parts):
            if part not in legal:
                problems.add(
                    given["name"].where,
                    "metric.name",
                    f"{part!r} is of no set in data.dev; allowed: {', '.join(legal)} and mean(...) of them",
                )
            elif parts.count(part) > 1:
                problems.add(given["name"].where, "metric.name", f"{part!r} is given twice")
            elif holdout and part not in splittable:
                problems.add(given["holdout"].where, "metric.holdout", f"{part!r} has no pairs that could be held out")
        name = normal_metric(name)
    return Metric(name=name, mode=mode or "max", holdout=holdout) if name and len(problems.found) == before else None


def check_taken_names(space: Space, root: Node, problems: Problems) -> None:
    """Report evaluations that measure what a dev set, another one or the study itself measures under the same name.

    A stored study does without: what it has begun it may go on with.
    """
    key, where = "data.evaluations", root.place("data", "evaluations")
    taken = {metric: "data.dev" for dev_set in space.data.dev for metric in dev_metrics(dev_set)}
    for name in space.data.evaluations or ():
        for metric in dict.fromkeys(evaluation_metrics([name])):
            if (other := taken.setdefault(metric, name)) != name:
                problems.add(where, key, f"{name}: {metric} is already measured by {other}")
    outside = {metric: name for metric, name in taken.items() if name != "data.dev"}
    for metric, name in outside.items():
        for prefix in (BEST_PREFIX, UNTRAINED_PREFIX):
            if (of := metric.removeprefix(prefix)) != metric and of in taken:
                problems.add(where, key, f"{name}: {metric} is what is tracked of {of}; rename it")
    for dev_set in space.data.dev if space.metric.holdout else ():
        if (metric := set_name(dev_set) + HELD + DEV_SUFFIX) in outside:
            message = f"{metric} of the held-out part is already measured by data.evaluations"
            problems.add(root.place("metric", "holdout"), "metric.holdout", message)


def _holdout(node: Node | None, data: Data | None, problems: Problems) -> float:
    """The share of the dev pairs that is held out; 0 without the key."""
    if node is None or node.value is None:
        return 0.0
    share = node.value
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        problems.add(node.where, "metric.holdout", f"expected a share of the dev pairs in [0, 1), got {share!r}")
        return 0.0
    names = [set_name(dev_set) for dev_set in data.dev] if data else []
    for name in names:
        if share and name + HELD in names:
            problems.add(node.where, "metric.holdout", f"the held-out part of {name} would be called as another set is")
    return float(share)


def _of_script(name: str, mode: str | None, given: Mapping[str, Node], problems: Problems) -> Metric | None:
    """A metric that a script measures: only its name can be looked at."""
    if "holdout" in given and given["holdout"].value:
        problems.add(given["holdout"].where, "metric.holdout", "has no meaning for a script, which measures by itself")
        return None
    try:
        parts = metric_parts(name)
    except ValueError as error:
        problems.add(given["name"].where, "metric.name", str(error).removeprefix("metric: "))
        return None
    for part in parts:
        if not re.fullmatch(rf"[A-Za-z0-9_.-]+{DEV_SUFFIX}", part) or parts.count(part) > 1:
            message = f"expected names of letters, digits, '_', '-' that end with {DEV_SUFFIX}, each once, got {part!r}"
            problems.add(given["name"].where, "metric.name", message)
            return None
    return Metric(name=normal_metric(name), mode=mode or "max")
