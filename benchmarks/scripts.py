"""What a script's trial costs beside its training: trials of scripts that train nothing, through a real search.

Each trial reports six evaluations. "plain" reports them; "state" also saves a state of 4 MB at each; "state and model"
hands over a model of 90 MB (MiniLM's) at each as well, the best so far every time. Seconds a trial are wall seconds
from the end of one trial to the end of the next in a process that stays, proposing, judging and the journal included;
one trial at a time, the first left out.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

EVALUATIONS, TRIALS = 6, 12
SCRIPT = f"""
import os
from pathlib import Path

BLOCK = os.urandom(2**20)

def fill(path, mib):
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(BLOCK)

def write(folder):
    os.makedirs(folder)
    fill(Path(folder, "model.safetensors"), 90)

def train(config, report):
    for k in range(1, {EVALUATIONS} + 1):
        state = None
        if config["state"]:
            state = Path(config["checkpoints"], f"{{k}}.pt")
            fill(state, 4)
        model = write if config["model"] else None
        report(k, {{"x_dev": config["rate"] + k}}, of={EVALUATIONS}, checkpoint=state, model=model)
"""
ROWS = {"plain": (False, False), "state": (True, False), "state and model": (True, True)}


def run(runs: int) -> dict[str, Any]:
    """Medians over the trials of `runs` studies of each kind."""
    rows = []
    for name, (state, model) in ROWS.items():
        seconds = [s for _ in range(runs) for s in measure(state, model)]
        median = statistics.median(seconds)
        rows.append(
            {"trial": name, "s a trial": median, "s an evaluation": median / EVALUATIONS, "trials": len(seconds)}
        )
    return {"rows": rows}


def measure(state: bool, model: bool) -> list[float]:
    """Seconds from the end of each trial to the end of the next."""
    from rich.console import Console

    from search.running.runner import Options, run_study
    from search.space import load_space
    from search.store.journal import read

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT, encoding="utf-8")
        (Path(folder) / "space.yaml").write_text(
            "method: script\nscript: train.py\nmetric: {name: x_dev}\n"
            f"params: {{rate: {{float: [0, 1]}}, state: {str(state).lower()}, model: {str(model).lower()}}}\n"
            f"search: {{sampler: random, trials: {TRIALS}, concurrent: 1}}\nresources: {{gpus: 0}}\n",
            encoding="utf-8",
        )
        options = Options(console=Console(quiet=True), handle_signals=False)
        result = run_study(load_space(Path(folder) / "space.yaml"), f"{folder}/runs", options=options)
        assert result.ledger.stops == {"completed": TRIALS}, result.frequent_reasons
        ends = [event["t"] / 1000 for event in read(result.folder.journal) if event["e"] == "end"]
    return [later - earlier for earlier, later in itertools.pairwise(ends)]
