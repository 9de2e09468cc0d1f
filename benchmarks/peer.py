"""A whole search against what people would pick instead: sentence-transformers' `hyperparameter_search` (Optuna).

Both sides are processes of their own, start to exit: the same encoder folder, the same sentences and learning rates,
batches of 64, four evaluations a trial on the whole sentences of STS-B dev, all cores, alternated A B A B.

`auto` is each side as it comes: 8,192 sentences (STS-B train and Wikipedia), eight rates; ours takes bf16 where the
machine multiplies it and the peer float32, and the peer keeps Optuna's default pruner, which may end some of its last
three trials: `peer steps` is what it trained. "pruned" is our side of it with pruning and `SEEDS` seeds a point, as the
papers have them, timed to the moment the tracking store holds the peer's best score (never, where the search ends
without it). The other settings (`peer_sides`) are a quarter of it in steps, so that our start weighs more, prune on
neither side, and take one precision on both: `fp32`, `bf16`; `short` and `long` sentences; `supervised`, NLI triplets
with a hard negative. `PEER="settings=fp32+bf16"` narrows; `examples=512;rates=2` in it makes a trial run, whose figures
mean nothing.

Run k has seed k on both sides ("pruned": also the next ones), since the seed alone moves the best score by 0.01. The
encoder is the first layer of all-MiniLM-L6-v2 under mean pooling, which gains some 0.07: a random encoder, or one
trained on masked words only, loses by SimCSE, so that its best score would be its first.

Ratios are run by run: median, least and most. Other work on the machine costs the peer more than ours: its threads wait
for each other in every operator, our trials have a core each.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.inputs import first_layers
from benchmarks.peer_sides import Result, Setting, timed_ours, timed_peer, wanted

PRUNER, SEEDS = "successive_halving", 5
Race = dict[str, Result]  # side -> what a run of it gave


def run(runs: int) -> dict[str, Any]:
    settings = wanted(os.environ.get("PEER", ""))
    taken: dict[str, list[Race]] = {setting.name: [] for setting in settings}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        encoder = first_layers(scratch / "encoder", 1)
        auto = precision_of_auto(encoder)
        texts = {setting.name: setting.write(scratch) for setting in settings}
        for seed in range(runs):
            for setting in settings:
                given = setting, encoder, texts[setting.name], seed, scratch
                race = {"peer": timed_peer(*given), "ours": timed_ours(*given)}
                if setting.name == "auto":
                    race["pruned"] = timed_ours(*given, PRUNER, SEEDS, race["peer"]["best"])
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


def rows(setting: Setting, auto: str, races: list[Race]) -> list[dict[str, Any]]:
    """Of a setting: our search against the peer's; of `auto` also the pruned one and its way to the peer's best."""
    found = [row(setting.name, races, "ours", "seconds")]
    if "pruned" in races[0]:
        name = f"{setting.name}, ours pruned, {SEEDS} seeds"
        found.append(row(name, races, "pruned", "seconds"))
        found.append(row(f"{name}, to the peer's best", races, "pruned", "reached"))
    steps = statistics.median(race["peer"]["steps"] for race in races)
    alike = {
        "precision, peer and ours": f"{setting.peer}, {auto if setting.ours == 'auto' else setting.ours}",
        "peer steps": f"{steps:g} of {setting.steps * len(setting.rates)}",
    }
    return [each | alike for each in found]


def row(name: str, races: list[Race], side: str, which: str) -> dict[str, Any]:
    """Medians over the runs; `reached`: runs in which there is such a moment. None: never."""

    def median(who: str, what: str) -> float | None:
        return finite(statistics.median(race[who][what] for race in races))

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
    }


def finite(value: float) -> float | None:
    """For JSON: None for never."""
    return value if math.isfinite(value) else None
