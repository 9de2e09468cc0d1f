"""Real searches of today's families: a small pre-trained ModernBERT and Qwen3 with adapters, pieces and prompts.

`TODAYS=modernbert+qwen3 python -m benchmarks todays --runs 1` pre-trains both (minutes, once), searches by the command
line and scores the best one's export with SentenceTransformer on STS-B's dev pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import data_folder
from benchmarks.pretraining import pretrained

QUERY = "query: "
POOLING = {"modernbert": "avg", "qwen3": "last"}
SPACE = """\
method: simcse
encoder: {encoder}
data: {{train: wiki, dev: [stsb], language: en, prompts: {{query: "{query}", document: "passage: "}}}}
metric: {{name: stsb_dev}}
params:
  learning_rate: {{float: [1.0e-4, 1.0e-2], log: true}}
  temperature: {{choice: [0.05, 0.1]}}
  batch_size: {batch}
  pooling: {pooling}
  lora: {{rank: {{choice: [4, 16, 64]}}, alpha: 32, targets: all-linear}}
search: {{sampler: tpe, trials: {trials}, baseline: none}}
pruner: {{kind: none}}
train: {{max_examples: {examples}, eval_examples: {batch}, micro_batch: 64}}
"""


def run(runs: int) -> dict[str, Any]:
    """One row a family and run: untrained and best dev value, that of its export, seconds."""
    families = os.environ.get("TODAYS", "modernbert+qwen3").split("+")
    return {"rows": [row(family) for _ in range(runs) for family in families]}


def row(family: str, batch: int = 1024, trials: int = 4, examples: int = 6144) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        space = folder / f"{family}.yaml"
        encoder = pretrained(family).resolve()
        space.write_text(
            SPACE.format(
                encoder=encoder, pooling=POOLING[family], query=QUERY, batch=batch, trials=trials, examples=examples
            )
        )
        began = time.monotonic()
        command("search", "run", str(space), "--storage", name)
        seconds = time.monotonic() - began
        best = json.loads(command("analysis", "best", f"{family}-1", "--storage", name, "--format", "json"))["rows"][0][
            "value"
        ]
        command("analysis", "export", f"{family}-1", "--storage", name, "--out", str(folder / "model"))
        journal = (folder / f"{family}-1" / "tracking.jsonl").read_text(encoding="utf-8").splitlines()
        events = [event for line in journal if (event := json.loads(line))["e"] == "eval"]
        untrained = next(e["metrics"]["untrained_stsb_dev"] for e in events if "untrained_stsb_dev" in e["metrics"])
        return {
            "family": family, "batch": batch, "untrained": round(100 * untrained, 2),
            "best": round(100 * max(event["value"] for event in events), 2), "said": round(100 * best, 2),
            "export": round(exported(folder / "model"), 2), "seconds": round(seconds),
        }  # fmt: skip


def command(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "160"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def exported(folder: Path) -> float:
    """Spearman times 100 of the export on STS-B's dev pairs, by SentenceTransformer with its query prompt."""
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import pairwise_cos_sim

    rows = [r.split("\t") for r in (data_folder() / "en_stsb_dev.tsv").read_text("utf-8").splitlines()[1:]]
    model = SentenceTransformer(str(folder), device="cpu")
    sides = [model.encode([row[i] for row in rows], prompt_name="query") for i in (0, 1)]
    cosines = pairwise_cos_sim(*sides).numpy()
    return 100 * float(spearmanr(cosines, [float(row[2]) for row in rows]).statistic)
