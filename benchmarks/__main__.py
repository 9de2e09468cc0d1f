"""One entry point: `python -m benchmarks NAME [--out FILE]` prints a table and writes JSON.

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
    "peer": "(a), (b) whole search against sentence-transformers' hyperparameter_search",
    "packing": "(c) step time packed against padded, per method",
    "micro_batch": "memory and time an example of a batch of 4,096 encoded in pieces, beside batches that fit",
    "words_in_use": "a trial of the words in use against one of XLM-R's whole table: time, memory, checkpoint",
    "pages": "training and evaluation with 2 MB pages against 4 kB",
    "startup": "(d) trial start-up of no-op trials, one and two workers",
    "tracking": "evaluations a second that reach a real MLflow server from 400 trials at once, and the lag",
    "driver": "(e) driver cost per trial and memory at 100, 300, 1,000 trials",
    "loop": "evaluations a second that the driver in Tune's loop takes from 64 to 256 trials at once, and their wait",
    "analysis_speed": "(f) analysis best at 1,000 and 10,000 trials",
    "sda": "(g) SDA parse and augment rate, first and second time",
    "real": "every method through `search run` on real sets, against the untrained encoder",
    "quality": "which search returns the best point for its training, on recorded curves, in simulated time",
    "defaults": "a real search by the shipped default against the one before it, at the same training",
    "confirming": "trials that a confirmation spends and the error it leaves, adaptive against fixed, simulated",
    "proposals": "CPU seconds of a proposal per sampler, at 100, 1,000 and 5,000 points",
    "guesses": "what samplers are shown of paused points, against what such points reached, on recorded curves",
    "encoders": "every family of encoders through a trial on tiny random weights; writes docs/encoders.md",
    "todays": "real searches of a small pre-trained ModernBERT and Qwen3: LoRA, batches of 1,024 in pieces, prompts",
    "retrieval": "exact search in 100,000 documents for 1,000 queries, and its measures",
    "large_corpus": "a text of 10 million lines: memory and seconds to the first step, first time and second",
    "scripts": "what a script's trial costs beside its training, states and models included",
    "batches": "what the host does for a batch before the first kernel, and whether a thread would save it",
    "launches": "kernel launches of a training step on a GPU, counted on the CPU",
    "pictures": "the tutorial's study and every picture of docs/; needs Chromium",
    "gpu": "(h) trials on a card, alone and at once, against sentence-transformers on it, BERT-base",
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


@click.command(epilog="\b\n" + "\n".join(f"{name:16} {what}" for name, what in NAMES.items()))
@click.argument("name", type=click.Choice(list(NAMES)))
@click.option("--runs", default=5, show_default=True, help="alternated runs per side")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file [benchmarks/results/NAME.json]")
def main(name: str, runs: int, out: Path | None) -> None:
    """Run one benchmark."""
    from rich.console import Console
    from rich.table import Table

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and folders are cleared away
    started, load = time.time(), os.getloadavg()[0]
    result = importlib.import_module(f"benchmarks.{name}").run(runs)
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


if __name__ == "__main__":
    main()
