"""A smoke test of a space: builtin encoder and corpus, few and small trials."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from search.space.build import build
from search.space.conditions import distinct
from search.space.local_checks import check_taken_names
from search.space.nodes import Node, Problems, Where, from_plain, merge
from search.space.params import Param
from search.space.space import TRAIN_KEYS, Space
from trainables.contract.registry import declared
from trainables.contract.trial import metric_parts
from trainables.data.catalogue import BUILTIN_LANGUAGES
from trainables.data.retrieval import dev_metrics

TRIALS = 8
CAPS = {  # hyperparameters that set how long a step or a trial takes: (smallest, largest) value of a smoke trial
    "batch_size": (16, 64), "sample_size": (100, 2000), "max_length": (16, 64), "filters": (8, 16), "epochs": (1, 4),
    "warmup_epochs": (1, 2), "dimensions": (8, 64),  # of these the builtin encoder has no more
}  # fmt: skip
EXAMPLES, EVAL_EXAMPLES = 2000, 500


def smoke(space: Space) -> Space:
    """The space scaled to a minute or two on two CPU cores, on the builtin encoder and corpus.

    Same method, parameters and sampler; the file's `smoke` section has the last word. Its numbers show that things run,
    and nothing about the papers.
    """
    problems, changes = Problems(), from_plain(space.smoke, Where(space.source))
    built = build_smoke(space, changes, problems)
    problems.raise_if_any()
    assert built is not None
    check_taken_names(built, changes, problems)  # it has other dev sets
    problems.raise_if_any()
    return built


def build_smoke(space: Space, changes: Node, problems: Problems) -> Space | None:
    """The smoke test of a space under the changes that its file makes; None only when problems were added."""
    return build(merge(from_plain(scaled_down(space), changes.where), changes), space.source, problems)


def scaled_down(space: Space) -> dict[str, Any]:
    """The resolved space, changed; not yet checked.

    The dev sets are replaced by the builtin one, so a metric of theirs becomes `builtin_dev`.
    """
    method = declared(space.method)
    small = _few_rows(space if method.scripted else _capped(space))
    out = copy.deepcopy(small.resolved())
    out.pop("smoke", None)
    repeats = min(space.search.repeats, 2)
    trials = None if space.is_grid else max(2, min(space.search.trials or TRIALS, TRIALS) // repeats)
    ends = dict.fromkeys(("time", "device_hours", "patience", "concurrent", "budget", "examples"))
    out["search"] |= {"trials": trials, "repeats": repeats, **ends}
    out["pruner"] |= {"warmup": None, "min_rung": None}
    out["resources"] = {"gpus": 0, "cpus": 1, "workers": 1}
    if method.scripted:  # only the file's `smoke` section can shorten its trials
        out["search"]["baseline"] = out["preset"] = "none"  # it may not lie in fewer points
        return out
    out["encoder"] = method.encoders.builtin
    language = space.data.language if space.data.language in BUILTIN_LANGUAGES else "en"
    parser = "builtin" if method.parser else None
    out["data"] |= {"train": "builtin", "dev": ["builtin"], "columns": None, "language": language, "parser": parser}
    of_sets = {metric for dev_set in space.data.dev for metric in dev_metrics(dev_set)}
    if of_sets & set(metric_parts(space.metric.name)):  # evaluations from outside stay what they are
        out["metric"]["name"] = "builtin_dev"
    short = {"max_examples": EXAMPLES, "eval_examples": EVAL_EXAMPLES, "eval_steps": None, "precision": "fp32"}
    for name, value in (short | dict(method.smoke)).items():
        if name not in small.params:  # what is searched stays searched
            out["train" if name in TRAIN_KEYS else "params"][name] = value
    return out


def _capped(space: Space) -> Space:
    """No value above `CAPS`, in constants, ranges, lists, listed points and conditions alike."""
    shrink = {name: _shrinker(name, space.params.get(name)) for name in CAPS}

    def small(name: str, value: Any) -> Any:
        return shrink[name](value) if name in shrink and value is not None else value

    constants = {name: small(name, value) for name, value in space.values({}).items() if name not in space.params}
    if "sample_size" in constants and constants["sample_size"] is None:
        constants["sample_size"] = CAPS["sample_size"][1]
    params: dict[str, Param] = {}
    for name, param in space.params.items():
        when = {other: distinct(small(other, v) for v in values) for other, values in param.when.items()}
        if param.values is not None:
            param = replace(param, values=distinct(small(name, v) for v in param.values))
        elif param.high is not None and param.high != small(name, param.high):
            param = Param(name=name, kind="choice", values=distinct(small(name, v) for v in param.bounds))
        params[name] = replace(param, when=when)
    rows = distinct({name: small(name, value) for name, value in row.items()} for row in space.rows)
    return replace(space, params=params, constants=constants, rows=rows)


def _shrinker(name: str, param: Param | None) -> Callable[[float], float]:
    """How the values of a hyperparameter shrink: cut at the largest, or in proportion where a cut leaves one value."""
    least, most = CAPS[name]
    values = [v for v in param.typical if v is not None] if param else []
    if len(values) > 1 and min(values) >= most:
        factor = most / max(values)
        return lambda value: max(least, round(value * factor))
    return lambda value: min(value, most)


def _few_rows(space: Space) -> Space:
    """Of a grid about `TRIALS` points: first rows and first values, and every value that a condition names."""
    if not space.is_grid:
        return space
    named = {(o, repr(v)) for p in space.params.values() for o, values in p.when.items() for v in values}

    def shortened(lengths: dict[str, int]) -> Space:
        params = dict(space.params)
        for name, length in lengths.items():
            few = [v for i, v in enumerate(params[name]) if i < length or (name, repr(v)) in named]
            params[name] = Param(name=name, kind="grid", values=tuple(few), when=params[name].when)
        return replace(space, params=params, rows=space.rows[:TRIALS])

    lengths = {name: 1 for name, param in space.params.items() if not param.listed}
    growing = list(lengths)
    while growing:
        for name in list(growing):
            longer = lengths | {name: lengths[name] + 1}
            if lengths[name] < (space.params[name].count() or 0) and (shortened(longer).cardinality() or 0) <= TRIALS:
                lengths = longer
            else:
                growing.remove(name)
    return shortened(lengths)
