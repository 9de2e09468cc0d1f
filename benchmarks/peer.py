"""(a) A whole search against what people would pick instead: sentence-transformers' `hyperparameter_search` (Optuna).

Both sides are processes of their own, start to exit: the same encoder folder, the same 8,192 sentences (STS-B train and
Wikipedia), unsupervised SimCSE at batch 64 for 128 steps, four evaluations on STS-B dev, the same eight learning rates,
all cores, alternated A B A B. (b) is our side with pruning and `SEEDS` seeds a point, as the papers have them, timed
to the moment the tracking store holds the peer's best score (never, where the search ends without it): which side's
one seed is the luckier one is a coin's toss, more draws of the best rates are not. Run k has seed k on both sides (in
(b) also the next ones), since the seed alone moves the best score by a point. The encoder is the first layer of
all-MiniLM-L6-v2 under mean pooling, which gains some seven points: a random encoder, or one that knows only masked
words, loses by SimCSE, so that its best score would be its first.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import SENTENCES, data_folder, first_layers, write_sentences

RATES = [1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4]
BATCH, EVALUATIONS = 64, 4
STEPS = SENTENCES // BATCH
PRUNER, SEEDS = "successive_halving", 5

SPACE = """
name: peer
method: simcse
encoder: {encoder}
data: {{train: {sentences}, dev: [stsb], language: en}}
metric: {{name: stsb_dev, mode: max}}
params:
  learning_rate: {{grid: {rates}}}
  batch_size: {batch}
  pooling: avg
  head: none
search: {{sampler: grid, seed: {seed}, repeats: {repeats}, baseline: none}}
pruner: {{kind: {pruner}}}
resources: {{cpus: 1}}
train: {{max_examples: {examples}, eval_examples: {eval_examples}}}
"""


def peer_search(encoder: str, sentences: str, seed: int, out: str) -> None:
    """The peer's documented recipe, in this process; writes its best dev score."""
    import optuna
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    lines = Path(sentences).read_text(encoding="utf-8").splitlines()
    rows = [r.split("\t") for r in (data_folder() / "en_stsb_dev.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    evaluator = EmbeddingSimilarityEvaluator(
        [r[0] for r in rows],
        [r[1] for r in rows],
        [float(r[2]) for r in rows],
        name="stsb_dev",
        show_progress_bar=False,
    )
    best = []

    def model(trial: Any) -> SentenceTransformer:
        del trial
        transformer = models.Transformer(encoder, max_seq_length=32)
        pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="mean")
        return SentenceTransformer(modules=[transformer, pooling], device="cpu")

    def objective(metrics: dict[str, float]) -> float:
        best.append(metrics["eval_stsb_dev_spearman_cosine"])
        return best[-1]

    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            eval_strategy="steps",
            eval_steps=STEPS // EVALUATIONS,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            warmup_steps=0,
            use_cpu=True,
            seed=seed,
        )
        trainer = SentenceTransformerTrainer(
            model=None,
            model_init=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
            loss=lambda m: losses.MultipleNegativesRankingLoss(m, scale=20.0),
            evaluator=evaluator,
        )
        trainer.hyperparameter_search(
            hp_space=lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", RATES)},
            compute_objective=objective,
            n_trials=len(RATES),
            direction="maximize",
            backend="optuna",
            sampler=optuna.samplers.GridSampler({"learning_rate": RATES}, seed=seed),
        )
        scores = [
            h["eval_stsb_dev_spearman_cosine"]
            for h in trainer.state.log_history
            if "eval_stsb_dev_spearman_cosine" in h
        ]
    Path(out).write_text(json.dumps({"best": max(best + scores)}))


def timed_peer(encoder: Path, sentences: Path, seed: int, scratch: Path) -> dict[str, float]:
    """One run of the peer as a process: wall seconds and best dev score."""
    out = scratch / "peer.json"
    arguments = str(encoder), str(sentences), seed, str(out)
    code = f"from benchmarks.peer import peer_search; peer_search(*{arguments!r})"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return {"seconds": time.perf_counter() - started, "best": json.loads(out.read_text())["best"]}


def timed_ours(
    encoder: Path, sentences: Path, seed: int, scratch: Path, pruner: str, repeats: int, target: float = math.inf
) -> dict[str, float]:
    """One run of `search run` as a process: wall seconds of the whole and until MLflow has the target, best score."""
    storage = Path(tempfile.mkdtemp(dir=scratch))
    space = storage / "peer.yaml"
    space.write_text(
        SPACE.format(
            encoder=encoder,
            sentences=sentences,
            rates=RATES,
            seed=seed,
            batch=BATCH,
            pruner=pruner,
            repeats=repeats,
            examples=BATCH * STEPS,
            eval_examples=BATCH * STEPS // EVALUATIONS,
        )
    )
    command = [str(Path(sys.executable).with_name("search")), "run", str(space), "--storage", str(storage)]
    started = time.perf_counter()
    reached = math.inf
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    running = True
    while running:
        running = process.poll() is None  # what is in the store after the end counts too
        if _best(storage) >= target:
            reached = min(reached, time.perf_counter() - started)
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"search run failed with exit code {process.returncode}")
    return {"seconds": seconds, "best": _best(storage), "reached": reached}


def _best(storage: Path) -> float:
    """The best dev score in the tracking store so far, -inf while there is none."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{storage / 'mlflow.db'}?mode=ro", uri=True)) as store:
            row = store.execute("select max(value) from metrics where key = 'stsb_dev' and is_nan = 0").fetchone()
    except sqlite3.OperationalError:  # not made yet, or being written
        return float("-inf")
    return float("-inf") if row[0] is None else float(row[0])


def run(runs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        encoder, sentences = first_layers(scratch / "encoder", 1), write_sentences(scratch / "sentences.txt")
        theirs: list[dict[str, float]] = []
        ours: list[dict[str, float]] = []
        pruned: list[dict[str, float]] = []
        for seed in range(runs):
            theirs.append(timed_peer(encoder, sentences, seed, scratch))
            ours.append(timed_ours(encoder, sentences, seed, scratch, "none", 1))
            pruned.append(timed_ours(encoder, sentences, seed, scratch, PRUNER, SEEDS, theirs[-1]["best"]))
            print(f"run {seed}: {theirs[-1]} {ours[-1]} {pruned[-1]}", file=sys.stderr)
    sides = {
        "sentence-transformers": (theirs, "seconds"),
        "ours": (ours, "seconds"),
        f"ours, pruned, {SEEDS} seeds": (pruned, "seconds"),
        f"ours, pruned, {SEEDS} seeds, to the peer's best": (pruned, "reached"),
    }
    rows = [
        {
            "side": side,
            "seconds": finite(statistics.median(r[which] for r in results)),
            "ratio": finite(statistics.median(a[which] / b["seconds"] for a, b in zip(results, theirs, strict=True))),
            "reached": f"{sum(math.isfinite(r[which]) for r in results)} of {runs}",
            "best stsb_dev": statistics.median(r["best"] for r in results),
        }
        for side, (results, which) in sides.items()
    ]
    taken = {"theirs": theirs, "ours": ours, "pruned": pruned}
    return {"rows": rows, **{side: [{k: finite(v) for k, v in r.items()} for r in rs] for side, rs in taken.items()}}


def finite(value: float) -> float | None:
    """For JSON: None for never."""
    return value if math.isfinite(value) else None
