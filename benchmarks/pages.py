"""What 2 MB pages save (`trainables/__init__.py`): training and evaluation of one trial with and without, alternated.

Each side is a process of its own: SimCSE on real sentences at batch 64, one thread, 32 steps to each of two
evaluations on STS-B dev. The first 32 steps and the first evaluation warm up.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import data_folder, first_layers, write_sentences

BATCH, STEPS = 64, 32
LAYERS = (1, 6)  # of all-MiniLM-L6-v2


def trial(encoder: str, sentences: str) -> None:
    """One trial in this process; prints processor seconds of a step and of an evaluation."""
    import torch

    from trainables.contract.trial import TrialSpec
    from trainables.training import loop
    from trainables.training.trial import run_trial

    torch.set_num_threads(1)
    evaluate = loop.Training._evaluate
    marks: list[float] = []

    def timed(self: loop.Training, rung: int) -> Any:
        marks.append(time.process_time())
        evaluation = evaluate(self, rung)
        marks.append(time.process_time())
        return evaluation

    loop.Training._evaluate = timed  # type: ignore[method-assign]
    every = BATCH * STEPS
    with tempfile.TemporaryDirectory() as folder:
        spec = TrialSpec(
            method="simcse",
            encoder=encoder,
            data={"train": sentences, "dev": ["stsb"], "language": "en"},
            metric="stsb_dev",
            params={"batch_size": BATCH, "max_examples": 2 * every, "eval_examples": every},
            folder=folder,
        )
        outcome = run_trial(spec, lambda _: "go")
    if outcome.stop != "completed":
        raise SystemExit(outcome.reason)
    print(json.dumps({"step ms": (marks[2] - marks[1]) / STEPS * 1000, "evaluation ms": (marks[3] - marks[2]) * 1000}))


def run(runs: int) -> dict[str, Any]:
    data_folder()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        sentences = write_sentences(Path(scratch) / "sentences.txt")
        for layers in LAYERS:
            encoder = first_layers(Path(scratch) / str(layers), layers)
            sides: dict[str, list[dict[str, float]]] = {"0": [], "1": []}
            for side in list(sides) * runs:
                code = f"from benchmarks.pages import trial; trial({str(encoder)!r}, {str(sentences)!r})"
                environment = os.environ | {"THP_MEM_ALLOC_ENABLE": side}
                done = subprocess.run(
                    [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, env=environment
                )
                sides[side].append(json.loads(done.stdout))
            for what in ("step ms", "evaluation ms"):
                small, large = (statistics.median(r[what] for r in sides[side]) for side in ("0", "1"))
                rows.append({"layers": layers, "what": what, "4 kB": small, "2 MB": large, "ratio": large / small})
    return {"rows": rows}
