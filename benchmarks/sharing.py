"""Four small trials on all cores of a CPU: `resources.cpus: auto`, a core each, and one trial on all cores.

One Ray for all runs; a run's time is from its first trial's start to its last one's end in the journal. The first trial
of `auto` runs alone until its first evaluation, which is in its time.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TRIALS, EXAMPLES = 4, 6000
SPACE = """
name: sharing
method: simcse
encoder: builtin:tiny
preset: none
data: {{train: builtin, dev: [builtin], language: en}}
metric: {{name: builtin_dev}}
params: {{learning_rate: {{grid: [1.0e-4, 2.0e-4, 3.0e-4, 5.0e-4]}}, batch_size: 64}}
search: {{sampler: grid, seed: 0, baseline: none}}
pruner: {{kind: none}}
resources: {{gpus: 0, cpus: {cpus}}}
train: {{max_examples: {examples}, eval_examples: 1000, precision: fp32}}
"""


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` alternated rounds, after one that is not counted."""
    import ray

    from trainables.contract.limits import cores

    settings: dict[str, Any] = {"auto": "auto", "one core each": 1, "all cores each": cores()}
    taken: dict[str, list[float]] = {name: [] for name in settings}
    ray.init("local", num_cpus=cores(), log_to_driver=False, include_dashboard=False, object_store_memory=80 * 2**20)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(runs + 1):
                for name, cpus in settings.items():
                    taken[name].append(seconds(Path(folder), f"{name.replace(' ', '-')}-{number}", cpus))
                    print(f"round {number}, {name}: {taken[name][-1]:.1f} s", flush=True)
    finally:
        ray.shutdown()
    medians = {name: statistics.median(of[1:]) for name, of in taken.items()}
    rows = [
        {
            "resources": name,
            "s": round(s, 1),
            "trials/min": 60 * TRIALS / s,
            "throughput, auto = 1": medians["auto"] / s,
        }
        for name, s in medians.items()
    ]
    return {"rows": rows, "taken": taken}


def seconds(folder: Path, name: str, cpus: Any) -> float:
    """From the first start to the last end of a search's trials."""
    from rich.console import Console

    from search.running.runner import Options, run_study
    from search.space import load_space
    from search.store.journal import read

    path = folder / f"{name}.yaml"
    path.write_text(SPACE.format(cpus=cpus, examples=EXAMPLES))
    options = Options(console=Console(quiet=True), handle_signals=False)
    result = run_study(load_space(path), str(folder / "runs"), name=name, options=options)
    assert result.exit_code == 0, result.reason

    def times(kind: str) -> Iterator[int]:
        return (event["t"] for event in read(result.folder.journal) if event["e"] == kind)

    return (max(times("end")) - min(times("start"))) / 1000
