"""`method: pairs` against sentence-transformers' trainer: one epoch of 4,000 query-passage pairs, MiniLM with 6 layers.

Same pairs, batches of 64 without repeated texts, learning rate, warm-up, dropout, temperature, length, precision. Both
run in one process, in turn. The clock starts with the encoder and the texts in memory and stops after the last step, so
it includes the tokenising of both: sentence-transformers' collator tokenises every batch, ours all texts at the start,
without a cache. One evaluation scores both: nDCG@10 on the dev set, 4,000 passages. A run is a seed; `--runs 3` are
three seeds. Set PAIRS_PRECISION to fp32 (default) or bf16, PAIRS_COUNT to another number of pairs.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inputs import data_folder, first_layers, write_lines

PAIRS, BATCH, LENGTH, RATE, WARMUP, TEMPERATURE = 4000, 64, 128, 2e-5, 0.1, 0.05
LAYERS = 6
METRIC = "debian_ndcg10_dev"


def run(runs: int) -> dict[str, Any]:
    """A row a seed, the medians, and the untouched encoder's nDCG@10."""
    from trainables.contract.limits import cores
    from trainables.training.machine import use_large_pages

    use_large_pages()  # as in a trial's process
    import torch

    torch.set_num_threads(cores())
    precision = os.environ.get("PAIRS_PRECISION", "fp32")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        encoder = first_layers(folder / "minilm", LAYERS)
        header, *pairs = (data_folder() / "en_debian_pairs_train.tsv").read_text(encoding="utf-8").splitlines()
        chosen = random.Random(0).sample(pairs, int(os.environ.get("PAIRS_COUNT", PAIRS)))
        train = write_lines(folder / "pairs.tsv", [header, *chosen])
        untouched = scored(folder, encoder)
        for seed in range(runs):
            sides = {"ours": ours, "sentence-transformers": theirs}
            order = sorted(sides, reverse=seed % 2 == 1)  # alternated, so that a machine that slows down is fair
            found = {side: sides[side](folder, encoder, train, seed, precision) for side in order}
            (mine, score), (peer, peers) = found["ours"], found["sentence-transformers"]
            row = {"ours s": mine, "sentence-transformers s": peer, "ratio": mine / peer}
            rows.append({"seed": str(seed), **row, "ours nDCG@10": score, "sentence-transformers nDCG@10": peers})
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name != "seed"}
    return {
        "rows": [*rows, {"seed": "median", **medians}],
        "untouched": untouched,
        "precision": precision,
        "pairs": len(chosen),
    }


def spec_of(folder: Path, encoder: Path, train: Path | None = None, seed: int = 0, precision: str = "fp32") -> Any:
    """A trial of `pairs` with the settings that both sides share."""
    from trainables.contract.trial import TrialSpec

    data = {"train": str(train or folder / "pairs.tsv"), "dev": [str(data_folder() / "debian_dev")], "language": "en"}
    params = {
        "batch_size": BATCH, "batches": "no_duplicates", "learning_rate": RATE, "warmup_share": WARMUP, "dropout": 0.1,
        "temperature": TEMPERATURE, "max_length": LENGTH, "eval_max_length": LENGTH, "precision": precision,
    }  # fmt: skip
    place = str(folder / f"trial-{seed}-{time.time_ns()}")
    return TrialSpec(
        method="pairs", encoder=str(encoder), data=data, metric=METRIC, params=params, seed=seed, folder=place
    )


def ours(folder: Path, encoder: Path, train: Path, seed: int, precision: str) -> tuple[float, float]:
    """(seconds of tokenising and all steps, nDCG@10) of our training, as `train_by_method` does it."""
    import torch

    from trainables.contract.config import build
    from trainables.data.tokens import CACHE_DIR_VARIABLE
    from trainables.evaluation.scoring import evaluate
    from trainables.methods.method import load_method
    from trainables.training.checkpoint import TrialFiles
    from trainables.training.loop import Training
    from trainables.training.method_trial import load_inputs, text_tools

    spec = spec_of(folder, encoder, train, seed, precision)
    method: Any = load_method("pairs")
    config, inputs = build(method.config, spec.params), load_inputs(spec, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as empty:
        os.environ[CACHE_DIR_VARIABLE] = empty
        inputs = replace(inputs, tools=text_tools(inputs.source, spec.data, torch.device("cpu")))
        began = time.perf_counter()
        prepared = inputs.prepared(method, config, spec.seed)
        torch.manual_seed(spec.seed)
        network: Any = method.network(config, inputs.source, spec.seed)
        network.keep_words([prepared.tokens, *inputs.sets.sentences])
        one = Training(
            method=method, config=config, network=network, examples=prepared.examples,
            evaluate=lambda _: (0.0, {}, {}), seed=spec.seed, files=TrialFiles(spec.folder),
        )  # fmt: skip
        for batch in one.batches:
            one._step(batch)
        seconds = time.perf_counter() - began
        del os.environ[CACHE_DIR_VARIABLE]
    network.eval()
    return seconds, evaluate(network.embed, inputs.sets).metrics[METRIC]


def theirs(folder: Path, encoder: Path, train: Path, seed: int, precision: str) -> tuple[float, float]:
    """(seconds of `trainer.train()`, nDCG@10) of sentence-transformers' training."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from sentence_transformers.training_args import BatchSamplers

    transformer = models.Transformer(str(encoder), max_seq_length=LENGTH)
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    pairs = [line.split("\t") for line in train.read_text(encoding="utf-8").splitlines()[1:]]
    anchors, positives = zip(*pairs, strict=True)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "peer"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        warmup_steps=WARMUP,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        bf16=precision == "bf16",
        seed=seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"anchor": list(anchors), "positive": list(positives)}),
        loss=losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE),
    )
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    trained = folder / f"peer-{seed}"
    transformer.model.save_pretrained(trained)
    model.tokenizer.save_pretrained(trained)
    return seconds, scored(folder, trained)


def scored(folder: Path, encoder: Path) -> float:
    """nDCG@10 of an encoder as it is."""
    import torch

    from trainables.contract.config import build
    from trainables.evaluation.scoring import evaluate
    from trainables.methods.method import plain_encoder
    from trainables.methods.pairs.config import PairsConfig
    from trainables.training.method_trial import load_inputs

    spec = spec_of(folder, encoder)
    inputs: Any = load_inputs(spec, torch.device("cpu"))
    network: Any = plain_encoder(build(PairsConfig, spec.params), inputs.source)
    return evaluate(network.embed, inputs.sets).metrics[METRIC]
