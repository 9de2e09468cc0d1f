"""What one child of `benchmarks.gpu` does: train by one side's own loop, between two waits for the device.

It prints "ready" when it is warm, waits for a line, and prints one line of JSON: `seconds` of `steps` steps, `memory`
in GB, `evaluation` in seconds, `precision`; or `failed`, why this way of training cannot be had here.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MAX_LENGTH = 32


def main(case: str) -> None:
    """Train one `Case`, given as JSON."""
    import torch

    given = json.loads(case)
    side = ours if given.pop("side") == "ours" else peer
    if given["device"] == "cpu" and given["trials"] > 1:
        torch.set_num_threads(1)
    try:
        found = side(**given)
    except torch.OutOfMemoryError:
        found = {"failed": "out of memory"}
    except Exception as error:
        if not given["compiled"]:
            raise
        found = {"failed": f"torch.compile: {type(error).__name__}"}
    print(json.dumps(found), flush=True)


def synchronise(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


class Stopwatch:
    """The time between two waits for the device; the first one follows the word to start."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds, self._began = device, 0.0, 0.0

    def start(self) -> None:
        import torch

        synchronise(self.device)
        print("ready", flush=True)
        sys.stdin.readline()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._began = time.perf_counter()

    def stop(self) -> None:
        synchronise(self.device)
        self.seconds = time.perf_counter() - self._began

    def memory(self) -> float:
        """GB at the most: of the device's, on a CPU of the process."""
        import torch

        if self.device == "cuda":
            return torch.cuda.max_memory_allocated() / 1e9
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def second_time(evaluate: Callable[[], object], device: str) -> float:
    """Seconds of an evaluation, the first one apart: it makes what later ones use."""
    evaluate()
    synchronise(device)
    began = time.perf_counter()
    evaluate()
    synchronise(device)
    return time.perf_counter() - began


def ours(
    encoder: str, sentences: str, device: str, batch: int, tokenised: bool, warm_up: int, steps: int, **_: Any
) -> dict[str, Any]:
    """The product's loop. Not `tokenised`: the time to tokenise what the steps read is added: a first trial has it."""
    import torch

    from benchmarks.packing import training

    one = training(
        "simcse", "auto", Path(encoder), Path(sentences), False, torch.device(device),
        max_length=MAX_LENGTH, batch_size=batch,
    )  # fmt: skip
    watch, taken = Stopwatch(device), 0

    def train(count: int) -> None:
        nonlocal taken
        for _ in range(count):
            one._step(one.batches[taken % len(one.batches)])
            taken += 1

    train(warm_up)
    watch.start()
    if not tokenised:
        texts = Path(sentences).read_text(encoding="utf-8").splitlines()
        _cut(encoder, [texts[i % len(texts)] for i in range(batch * steps)])
    train(steps)
    watch.stop()
    memory = watch.memory()
    one.network.eval()

    def evaluate() -> None:
        with one._autocast():
            one.evaluate(one.world.sharded(one.network.embed))

    evaluation = second_time(evaluate, device)
    precision = "bf16" if one.bf16 else "fp32"
    return {"seconds": watch.seconds, "memory": memory, "evaluation": evaluation, "precision": precision}


def _cut(encoder: str, texts: Sequence[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    ids: list[list[int]] = AutoTokenizer.from_pretrained(encoder)(list(texts), truncation=True, max_length=MAX_LENGTH)[
        "input_ids"
    ]
    return ids


def peer(
    encoder: str,
    sentences: str,
    device: str,
    batch: int,
    tokenised: bool,
    compiled: bool,
    bf16: bool,
    warm_up: int,
    steps: int,
    **_: Any,
) -> dict[str, Any]:
    """sentence-transformers' trainer with the settings that make it fast: no synchronisation of its own in a step,
    torch's fused attention, TF32 for what stays float32, workers that tokenise, or tokens made before."""
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
    from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
    from transformers import TrainerCallback

    from benchmarks.inputs import data_folder

    cuda = device == "cuda"
    transformer = models.Transformer(encoder, max_seq_length=MAX_LENGTH, model_args={"attn_implementation": "sdpa"})
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=device)
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()
    watch = Stopwatch(device)

    class Watched(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == warm_up:
                watch.start()
            elif state.global_step == warm_up + steps:
                watch.stop()

    cache = dict(zip(lines, _cut(encoder, lines), strict=True)) if tokenised else {}

    def looked_up(texts: Sequence[str], **_: Any) -> Any:
        return model.tokenizer.pad({"input_ids": [cache[text] for text in texts]}, return_tensors="pt")

    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=batch,
            max_steps=warm_up + steps,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,  # it looks at the loss in every step
            report_to="none",
            disable_tqdm=True,
            use_cpu=not cuda,
            bf16=bf16,
            tf32=True if cuda else None,
            torch_compile=compiled,
            dataloader_num_workers=0 if tokenised or not cuda else 4,
            dataloader_drop_last=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
            loss=losses.MultipleNegativesRankingLoss(model, scale=20.0),
            data_collator=SentenceTransformerDataCollator(preprocess_fn=looked_up) if tokenised else None,
            callbacks=[Watched()],
        ).train()
    memory = watch.memory()
    rows = [r.split("\t") for r in (data_folder() / "en_stsb_dev.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    evaluator = EmbeddingSimilarityEvaluator(
        [r[0] for r in rows], [r[1] for r in rows], [float(r[2]) for r in rows], batch_size=256, show_progress_bar=False
    )

    def evaluate() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            evaluator(model)

    evaluation = second_time(evaluate, device)
    precision = "bf16" if bf16 else "fp32"
    return {"seconds": watch.seconds, "memory": memory, "evaluation": evaluation, "precision": precision}
