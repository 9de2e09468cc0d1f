"""What each side of `benchmarks.peer` does for one setting and seed, as a process that is timed from start to exit."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.inputs import dev_pairs
from benchmarks.peer_settings import BATCH, EVALUATIONS, MAX_LENGTH, TEMPERATURE, Setting

CHILD = "import sys; from benchmarks.peer_sides import peer_search; peer_search(sys.argv[1])"
Result = dict[str, Any]


def peer_search(case: str) -> None:
    """The peer's documented recipe, in this process; writes its best dev score and its steps in all trials."""
    import optuna
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    from trainables.data.parallel import cores

    torch.set_num_threads(cores())  # whatever the environment says: ours takes all of them, too
    given = json.loads(case)
    setting, seed = Setting(**given["setting"]), given["seed"]
    columns = zip(*setting.read(Path(given["texts"])), strict=True)
    train = Dataset.from_dict(dict(zip(("anchor", "positive", "negative"), columns, strict=False)))
    first, second, gold = dev_pairs()
    best: list[float] = []
    encoded = {True: 0, False: 0}  # batches of one column, in training and in evaluation

    class Uncut(EmbeddingSimilarityEvaluator):  # type: ignore[misc]  # no types
        """Whole sentences, as ours evaluates them."""

        def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            model.max_seq_length = model[0].config.max_position_embeddings
            scores = super().__call__(model, *args, **kwargs)
            model.max_seq_length = MAX_LENGTH
            return scores

    def count(module: Any, _: Any) -> None:
        encoded[module.training] += 1

    def model(trial: Any) -> SentenceTransformer:
        del trial
        transformer = models.Transformer(given["encoder"], max_seq_length=MAX_LENGTH)
        transformer.register_forward_pre_hook(count)
        pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="mean")
        return SentenceTransformer(modules=[transformer, pooling], device="cpu")

    def objective(metrics: dict[str, float]) -> float:
        best.append(metrics["eval_stsb_dev_spearman_cosine"])  # of every evaluation
        return best[-1]

    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=BATCH,
            max_steps=setting.steps,
            eval_strategy="steps",
            eval_steps=setting.steps // EVALUATIONS,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            warmup_steps=0,
            use_cpu=True,
            bf16=setting.peer == "bf16",
            seed=seed,
        )
        trainer = SentenceTransformerTrainer(
            model=None,
            model_init=model,
            args=arguments,
            train_dataset=train,
            loss=lambda m: losses.MultipleNegativesRankingLoss(m, scale=1 / TEMPERATURE),
            evaluator=Uncut(first, second, gold, name="stsb_dev", show_progress_bar=False),
        )
        rates = {"learning_rate": list(setting.rates)}
        trainer.hyperparameter_search(
            hp_space=lambda trial: {name: trial.suggest_categorical(name, values) for name, values in rates.items()},
            compute_objective=objective,
            n_trials=len(setting.rates),
            direction="maximize",
            backend="optuna",
            sampler=optuna.samplers.GridSampler(rates, seed=seed),
            pruner=None if setting.prunes else optuna.pruners.NopPruner(),  # None: Optuna's default, the median
        )
    Path(given["out"]).write_text(json.dumps({"best": max(best), "steps": encoded[True] / setting.columns}))


def timed_peer(setting: Setting, encoder: Path, texts: Path, seed: int, scratch: Path) -> Result:
    """One run of the peer: wall seconds, best dev score, steps in all trials."""
    out = scratch / "peer.json"
    case = {"setting": asdict(setting), "encoder": str(encoder), "texts": str(texts), "seed": seed, "out": str(out)}
    started = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", CHILD, json.dumps(case)], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise SystemExit(f"peer: {setting.name}: exit code {ended.returncode}: {ended.stderr.strip()[-500:]}")
    return {"seconds": seconds, **json.loads(out.read_text())}


def timed_ours(
    setting: Setting, encoder: Path, texts: Path, seed: int, scratch: Path,
    pruner: str = "none", repeats: int = 1, target: float = math.inf,
) -> Result:  # fmt: skip
    """One run of `search run`: wall seconds of the whole and until MLflow has the target, best score.

    It finds no tokens of an earlier run: the peer keeps none.
    """
    storage = Path(tempfile.mkdtemp(dir=scratch))
    space = storage / "peer.yaml"
    space.write_text(setting.space(encoder, texts, seed, pruner, repeats))
    command = [str(Path(sys.executable).with_name("search")), "run", str(space), "--storage", str(storage)]
    environment = os.environ | {"SEARCH_CACHE_DIR": str(storage / "cache")}
    started = time.perf_counter()
    reached = math.inf
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    running = True
    while running:
        running = process.poll() is None  # what is in the store after the end counts too
        if _best(storage) >= target:
            reached = min(reached, time.perf_counter() - started)
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"ours: {setting.name}: search run failed with exit code {process.returncode}")
    return {"seconds": seconds, "best": _best(storage), "reached": reached}


def _best(storage: Path) -> float:
    """The best dev score in the tracking store so far, -inf while there is none."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{storage / 'mlflow.db'}?mode=ro", uri=True)) as store:
            row = store.execute("select max(value) from metrics where key = 'stsb_dev' and is_nan = 0").fetchone()
    except sqlite3.OperationalError:  # not made yet, or being written
        return float("-inf")
    return float("-inf") if row[0] is None else float(row[0])
