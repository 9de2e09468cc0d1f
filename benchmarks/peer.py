"""(a) A whole search against what people would pick instead: sentence-transformers' `hyperparameter_search` (Optuna).

Both sides are processes of their own, start to exit: the same encoder folder, the same sentences and learning rates,
batches of 64, four evaluations a trial on the whole sentences of STS-B dev, all cores, alternated A B A B.

`auto` is each side as it comes: 8,192 sentences (STS-B train and Wikipedia), eight rates; ours takes bf16 where the
machine multiplies it and the peer float32, and the peer keeps Optuna's default pruner, which may end some of its last
three trials: `peer steps` says what it trained. (b) is our side of it with pruning and `SEEDS` seeds a point, as the
papers have them, timed to the moment the tracking store holds the peer's best score (never, where the search ends
without it): which side's one seed is the luckier one is a coin's toss, more draws of the best rates are not. The other
settings (`peer_settings`) are a quarter of it in steps, so that our start weighs more, prune on neither side, and take
one precision on both: `fp32`, `bf16`; `short` and `long` sentences; `supervised`, NLI triplets with a hard negative.
`PEER="settings=fp32+bf16"` narrows; `examples=512;rates=2` in it makes a trial run, whose figures say nothing.

Run k has seed k on both sides (in (b) also the next ones), since the seed alone moves the best score by a point. The
encoder is the first layer of all-MiniLM-L6-v2 under mean pooling, which gains some seven points: a random encoder, or
one that knows only masked words, loses by SimCSE, so that its best score would be its first.

Ratios are run by run: median, least and most. Share of the matmul rate: a side's own operations in training and
evaluation, padding where it computes it, over its whole wall time, its start included, as a share of what the machine
multiplies just before in that precision on all cores. Only a quiet machine tells: the peer's threads wait for each
other in every operator, so that other work costs it more than ours, whose trials have a core each. A matmul rate below
that of other runs gives such work away.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.inputs import first_layers
from benchmarks.peer_settings import BATCH, EVALUATIONS, MAX_LENGTH, Setting, wanted
from benchmarks.peer_sides import Result, dev_pairs, timed_ours, timed_peer

PRUNER, SEEDS = "successive_halving", 5
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
Lengths = NDArray[np.int64]
Race = dict[str, Result]  # side -> what a run of it gave


def run(runs: int) -> dict[str, Any]:
    from transformers import AutoConfig

    settings = wanted(os.environ.get("PEER", ""))
    taken: dict[str, list[Race]] = {setting.name: [] for setting in settings}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        encoder = first_layers(scratch / "encoder", 1)
        config, auto = AutoConfig.from_pretrained(encoder), precision_of_auto(encoder)
        texts = {setting.name: setting.write(scratch) for setting in settings}
        work = {s.name: our_operations(config, s, encoder, texts[s.name]) for s in settings}
        for seed in range(runs):
            for setting in settings:
                rates = matmul_rates(setting, auto)
                given = setting, encoder, texts[setting.name], seed, scratch
                theirs, ours = counted(config, setting, timed_peer(*given)), timed_ours(*given)
                race = {
                    "peer": with_share(theirs, theirs["operations"], rates["peer"]),
                    "ours": with_share(ours, work[setting.name], rates["ours"]),
                }
                if setting.name == "auto":
                    race["pruned"] = timed_ours(*given, PRUNER, SEEDS, theirs["best"])
                taken[setting.name].append(race)
                print(f"{setting.name}, run {seed}: {race}", file=sys.stderr, flush=True)
    return {
        "rows": [row for setting in settings for row in rows(setting, auto, taken[setting.name])],
        "taken": {
            name: [{side: {k: finite(v) for k, v in result.items()} for side, result in r.items()} for r in races]
            for name, races in taken.items()
        },
    }


def precision_of_auto(encoder: Path) -> str:
    """What our side's `auto` is on this machine."""
    import torch
    from transformers import BertModel

    from trainables.training.machine import in_bf16

    return "bf16" if in_bf16("auto", BertModel.from_pretrained(encoder), torch.device("cpu")) else "fp32"


def precisions(setting: Setting, auto: str) -> dict[str, str]:
    """Of each side. auto: what `auto` is here."""
    return {"peer": setting.peer, "ours": auto if setting.ours == "auto" else setting.ours}


def matmul_rates(setting: Setting, auto: str) -> dict[str, float]:
    """Operations per second of large products on all cores now, in the precision of each side."""
    import torch

    from benchmarks.operations import matmul_rate
    from trainables.data.parsing import cores

    torch.set_num_threads(cores())
    own = precisions(setting, auto)
    found = {p: matmul_rate("cpu", getattr(torch, DTYPES[p])) for p in dict.fromkeys(own.values())}
    return {side: found[precision] for side, precision in own.items()}


def forward_operations(config: Any, lengths: Lengths) -> float:
    """Of encoding sentences of these lengths (n,) once.

    `step_operations` of one example: two sentences forward and, twice that, backward, and so their similarity.
    """
    from benchmarks.operations import step_operations

    step = step_operations(config, lengths, batch=1, last_first_only=False)
    return float(len(lengths) / 2 * (step / 3 - 2 * config.hidden_size))


def search_operations(config: Any, columns: int, trained: Lengths, evaluated: Lengths) -> float:
    """Of a side's whole search, from the lengths of all sentences as it encodes them, padding included if it pads.

    Args:
        columns: texts of an example; all but the first are what every first one of a batch is compared with.
        trained: encoded for a step, (n,) in all steps of all trials. evaluated: (m,) in all evaluations.
    """
    similarities = len(trained) / columns * BATCH * (columns - 1)
    training = forward_operations(config, trained) + 2 * similarities * config.hidden_size
    return float(3 * training + forward_operations(config, evaluated))


def our_operations(config: Any, setting: Setting, encoder: Path, texts: Path) -> float:
    """Every trial takes every example once; an evaluation takes every distinct sentence once. Nothing is padded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    sentences = [text for example in setting.read(texts) for text in example]
    trained = tokenizer(sentences, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    evaluated = {tuple(ids) for ids in tokenizer([text for pair in dev_pairs() for text in pair[:2]])["input_ids"]}
    trial = search_operations(
        config, setting.columns, lengths_of(trained), np.tile(lengths_of(list(evaluated)), EVALUATIONS)
    )
    return len(setting.rates) * trial


def lengths_of(sequences: Sequence[Sequence[int]]) -> Lengths:
    return np.array([len(ids) for ids in sequences])


def counted(config: Any, setting: Setting, result: Result) -> Result:
    """Of a run of the peer: what it has encoded, as it padded it, in operations, and its steps in all trials."""
    trained, evaluated = (spread(result[kind]) for kind in ("trained", "evaluated"))
    return {
        "seconds": result["seconds"],
        "best": result["best"],
        "steps": len(trained) / setting.columns / BATCH,
        "operations": search_operations(config, setting.columns, trained, evaluated),
    }


def with_share(result: Result, operations: float, rate: float) -> Result:
    """Operations over the whole wall time, as a share of what the machine multiplies."""
    return result | {"operations": operations, "rate": rate, "share": operations / result["seconds"] / rate}


def spread(sentences: Mapping[str, int]) -> Lengths:
    """(n,) lengths, from how many sentences there are of each."""
    return np.repeat([int(length) for length in sentences], list(sentences.values()))


def rows(setting: Setting, auto: str, races: list[Race]) -> list[dict[str, Any]]:
    """Of a setting: our search against the peer's, and in (b) the pruned one and its way to the peer's best."""
    found = [row(setting.name, races, "ours", "seconds")]
    if "pruned" in races[0]:
        name = f"{setting.name}, ours pruned, {SEEDS} seeds"
        found.append(row(name, races, "pruned", "seconds"))
        found.append(row(f"{name}, to the peer's best", races, "pruned", "reached"))
    steps = statistics.median(race["peer"]["steps"] for race in races)
    rates = (statistics.median(race[side]["rate"] for race in races) / 1e9 for side in ("peer", "ours"))
    alike = {
        "precision": ", ".join(precisions(setting, auto).values()),
        "matmul Gflop/s": ", ".join(f"{rate:.4g}" for rate in rates),
        "peer steps": f"{steps:g} of {setting.steps * len(setting.rates)}",
    }
    return [each | alike for each in found]


def row(name: str, races: list[Race], side: str, which: str) -> dict[str, Any]:
    """Medians over the runs; `reached`: runs in which there is such a moment. None: never, or not counted."""

    def median(who: str, what: str) -> float | None:
        return finite(statistics.median(race[who][what] for race in races)) if what in races[0][who] else None

    ratios = [race[side][which] / race["peer"]["seconds"] for race in races]
    return {
        "setting": name,
        "peer s": median("peer", "seconds"),
        "ours s": median(side, which),
        "ratio": finite(statistics.median(ratios)),
        "least": finite(min(ratios)),
        "most": finite(max(ratios)),
        "reached": f"{sum(math.isfinite(race[side][which]) for race in races)} of {len(races)}",
        "peer best": median("peer", "best"),
        "ours best": median(side, "best"),
        "peer share": median("peer", "share"),
        "ours share": median(side, "share"),
    }


def finite(value: float) -> float | None:
    """For JSON: None for never."""
    return value if math.isfinite(value) else None
