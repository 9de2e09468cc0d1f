"""Whether different values of `sample_size` are different runs: a sample of more than the corpus holds is all of it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from search.space.nodes import Node
from search.space.params import Param
from search.space.problems import Problems
from search.space.space import Space
from trainables.contract.registry import declared

SAMPLE = "sample_size"
COUNTED, NOTED = 1 << 28, 1 << 23  # bytes of a corpus up to which it is counted; for a note alone


def check_sample_fit(space: Space, root: Node, problems: Problems) -> None:
    """Report a search over values of which several are the whole corpus, where that is on this machine."""
    if (param := space.params.get(SAMPLE)) is None or (size := _size(space, COUNTED)) is None:
        return
    if whole := _whole(space, param, size):
        section = "points" if param.listed else "params"
        node = root.value[section] if param.listed else root.value[section].value[SAMPLE]
        message = f"expected at most {size}, the corpus has {size} examples: {whole} are the same run"
        problems.add(node.where, f"{section}.{SAMPLE}", message)


def sample_notes(space: Space) -> list[str]:
    """That a sample is the whole corpus, where the file asks for more than that."""
    wanted = space.base.get(SAMPLE)
    if SAMPLE in space.params or declared(space.method).scripted or wanted is None:
        return []
    size = _size(space, NOTED)
    if size is None or wanted <= size:
        return []
    return [f"{SAMPLE}: {wanted} of {size} examples that the corpus has: all of them are trained on"]


def _whole(space: Space, param: Param, size: int) -> str:
    """The values that take the whole corpus in words, "" if at most one does."""
    if param.values is None:  # a range may have more values than can be looked at
        assert param.low is not None
        assert param.high is not None
        low, high, step = int(param.low), int(param.high), int(param.step or 1)
        first = low + step * max(0, math.ceil((size - low) / step))
        return f"{first} to {high}" if first < high else ""
    if param.listed:
        rows = [row for row in space.rows if SAMPLE in row and _is_whole(row[SAMPLE], size)]
        rest = [repr(sorted((name, value) for name, value in row.items() if name != SAMPLE)) for row in rows]
        times = Counter(rest)
        values: list[Any] = [row[SAMPLE] for row, others in zip(rows, rest, strict=True) if times[others] > 1]
    else:
        values = [value for value in param.values if _is_whole(value, size)]
    return ", ".join("null" if v is None else str(v) for v in values) if len(values) > 1 else ""


def _is_whole(value: Any, size: int) -> bool:
    return value is None or value >= size


def _size(space: Space, most: int) -> int | None:
    from trainables.data.checks import corpus_size

    if declared(space.method).scripted:
        return None
    return corpus_size({"method": space.method, "data": asdict(space.data)}, most)
