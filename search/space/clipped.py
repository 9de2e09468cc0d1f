"""Values of a searched hyperparameter that train alike, since the corpus on this machine has no more examples."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from search.space.checks import written_at
from search.space.nodes import Node, Problems
from search.space.params import Param
from search.space.space import Space
from trainables.contract.config import EncoderConfig, RunConfig, Settings
from trainables.contract.registry import declared
from trainables.data.catalogue import train_parts

SAMPLE, BATCH = "sample_size", "batch_size"
COUNTED, NOTED = 1 << 28, 1 << 23  # bytes of a corpus up to which it is counted; for batches or a note alone


def sample_notes(space: Space) -> list[str]:
    """A line where the space's sample is larger than the corpus."""
    wanted = space.base.get(SAMPLE)
    if wanted is None or SAMPLE in space.params:
        return []
    size = _corpus_size(space, NOTED)
    if size is None or wanted <= size:
        return []
    return [f"{SAMPLE}: {wanted} of {size} examples that the corpus has: all of them are trained on"]


def check_sets(space: Space, root: Node, problems: Problems) -> None:
    """Report batches of one set each where there is one set, and weights that are not one for each set."""
    if not issubclass(declared(space.method).config, EncoderConfig):
        return
    sets = len(train_parts(space.data.train))
    for name in ("sets", "set_weights"):
        for value in space.params[name].typical if name in space.params else (space.base[name],):
            if name == "sets" and value != "joined" and sets == 1:
                problems.add(written_at(root, name) or root.where, f"{value} needs several sets in data.train, got one")
            elif name == "set_weights" and value is not None and len(value) != sets:
                message = f"expected {sets} weights, one for each set of data.train, got {len(value)}"
                problems.add(written_at(root, name) or root.where, message)


def check_clipped(space: Space, root: Node, problems: Problems) -> None:
    """Report a search over samples, batches, queues or lengths of training of which several are the same run."""
    config: type[Settings] = declared(space.method).config
    # Methods from outside may make their batches in another way.
    ours = config.__module__.startswith("trainables.")
    limits_of = config.saturation_values if issubclass(config, RunConfig) and ours else None
    longest = {**space.base, **{name: _largest(name, param) for name, param in space.params.items()}}
    searched = space.params.keys() & {SAMPLE, *(limits_of(longest, 2) if limits_of else ())}
    size = _corpus_size(space, NOTED if searched == {BATCH} else COUNTED) if searched else None
    if size is None:
        return
    sample = longest.get(SAMPLE)
    trained = size if sample is None else min(size, sample)
    limits = {SAMPLE: size, **(limits_of(longest, trained) if limits_of else {})}
    for name in searched:
        limit = math.ceil(limits[name]) if space.params[name].kind == "int" else limits[name]
        if whole := _whole(space, name, limit):
            message = f"expected at most {limit:.12g}, the corpus has {size} examples: {whole} are the same run"
            problems.add(written_at(root, name) or root.where, message)


def _largest(name: str, param: Param) -> Any:
    """The value under which others are clipped last; null means all, and small batches make a queue long."""
    values = param.typical
    if None in values or not all(isinstance(value, (int, float)) for value in values):
        return None if None in values else values[0]
    return min(values) if name == BATCH else max(values)


def _whole(space: Space, name: str, limit: float) -> str:
    """The values of a parameter that its limit makes one, in words; "" if at most one does."""
    param = space.params[name]
    if param.values is None:  # a range may have more values than can be listed
        low, high = param.bounds
        step = param.step or (1 if param.kind == "int" else 0)
        first = low + step * max(0, math.ceil((limit - low) / step)) if step else max(low, limit)
        return f"{first:.12g} to {high:.12g}" if first < high else ""
    values = [value for value in param.values if _is_whole(value, limit)]
    if param.listed:
        rows = [row for row in space.rows if name in row and _is_whole(row[name], limit)]
        rest = [repr(sorted((other, value) for other, value in row.items() if other != name)) for row in rows]
        times = Counter(rest)
        values = [row[name] for row, others in zip(rows, rest, strict=True) if times[others] > 1]
    return ", ".join("null" if v is None else str(v) for v in values) if len(values) > 1 else ""


def _is_whole(value: Any, limit: float) -> bool:
    return value is None or value >= limit


def _corpus_size(space: Space, most: int) -> int | None:
    from trainables.data.checks import corpus_size

    if declared(space.method).scripted:
        return None
    return corpus_size({"method": space.method, "data": asdict(space.data)}, most)
