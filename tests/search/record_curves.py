"""Records the learning curves that `test_pruners.py` replays: real trials, every point of a grid trained to its end.

    OMP_NUM_THREADS=1 python tests/search/record_curves.py [PROCESSES]

trains unsupervised SimCSE on the builtin encoder and corpus (trainables only: no Ray, no study) and writes
`recorded_curves.json`. About ten minutes of two free CPU cores; run it again when the training loop changes what a
trial computes.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("recorded_curves.json")
EVALUATIONS, EVERY = 27, 240  # of a trial; training examples between two
CHOICES: dict[str, list[Any]] = {
    "learning_rate": [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2],
    "batch_size": [16, 32, 64],
    "dropout": [0.0, 0.2],
    "temperature": [0.02, 0.05, 0.2],
}


def record(values: tuple[Any, ...]) -> list[float]:
    """The dev value at each evaluation of one trial."""
    import torch

    from trainables.contract.trial import Evaluation, TrialSpec, Verdict
    from trainables.training.trial import run_trial

    torch.set_num_threads(1)
    curve: list[float] = []

    def report(evaluation: Evaluation) -> Verdict:
        curve.append(round(evaluation.value, 5))
        return "go"

    with tempfile.TemporaryDirectory() as folder:
        spec = TrialSpec(
            method="simcse",
            encoder="builtin:tiny",
            data={"train": "builtin", "dev": ["builtin"], "language": "en"},
            metric="builtin_dev",
            params={
                **dict(zip(CHOICES, values, strict=True)),
                "max_examples": EVALUATIONS * EVERY,
                "eval_examples": EVERY,
                "epochs": 2,
            },
            folder=folder,
        )
        outcome = run_trial(spec, report)
    # A collapsed trial is a result of its point too; its curve would need a rule of its own, and none collapses here.
    assert outcome.stop == "completed", outcome
    assert len(curve) == EVALUATIONS
    return curve


def main() -> None:
    points = list(itertools.product(*CHOICES.values()))
    curves = []
    with multiprocessing.get_context("spawn").Pool(int(sys.argv[1]) if len(sys.argv) > 1 else 2) as pool:
        for point, curve in zip(points, pool.imap(record, points), strict=True):
            curves.append(curve)
            print(*point, max(curve), flush=True)
    lines = ",\n".join(f"{json.dumps(p)[:-1]}, {json.dumps(c)}]" for p, c in zip(points, curves, strict=True))
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
