"""What one child of `benchmarks.gpu` does: train by one side's own loop, between two waits for the device.

It prints "ready" when it is warm, waits for a line, and prints one line of JSON: `seconds` of `steps` steps, `memory`
in GB, `evaluation` in seconds, `untrained`, the dev score before training (both sides start with the same weights and
score the same pairs, no sentence cut), `precision`; or `failed`, why this way of training cannot be had here. Neither
side has a head; clipping, fused AdamW and linear decay are the same.
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
WORKERS = {"cuda": 4, "cpu": 0}  # that make the peer's batches
PAIRS_AT_ONCE = {"cuda": 1024, "cpu": 64}  # in the peer's evaluation


def main(case: str) -> None:
    """Train one `Case`, given as JSON."""
    import torch

    given = json.loads(case)
    side = ours if given.pop("side") == "ours" else peer
    if given["device"] == "cuda" or given["trials"] > 1:  # children that get ready beside each other, on few cores
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
    """The time between two waits for the device; the first one follows the line that starts it."""

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


def second_time(score: Callable[[], float], device: str) -> float:
    """Seconds of an evaluation, the first one apart: it makes what later ones use."""
    score()
    synchronise(device)
    began = time.perf_counter()
    score()
    synchronise(device)
    return time.perf_counter() - began


def ours(
    encoder: str, sentences: str, device: str, batch: int, tokenised: bool, warm_up: int, steps: int, **_: Any
) -> dict[str, Any]:
    """The product's loop. Not `tokenised`: the time to tokenise what the steps read is added: a first trial has it."""
    import torch

    from benchmarks.packing import training
    from trainables.data.tokens import tokenizer_encoder

    one = training(
        "simcse", "auto", Path(encoder), Path(sentences), False, torch.device(device),
        max_length=MAX_LENGTH, batch_size=batch, head="none",
    )  # fmt: skip
    assert len(one.batches) >= warm_up + steps
    texts = Path(sentences).read_text(encoding="utf-8").splitlines()[: batch * steps]
    watch, tokenise = Stopwatch(device), tokenizer_encoder(one.network._source.tokenizer)

    def score() -> float:
        one.network.eval()
        with one._autocast():
            value: float = one.evaluate(one.world.sharded(one.network.embed))[0]
        return value

    def train(count: int) -> None:
        for _ in range(count):
            one._step(one.batches[one.progress.step])

    untrained = score()

    train(warm_up)
    watch.start()
    if not tokenised:
        list(tokenise(texts))
    train(steps)
    watch.stop()
    found = {"seconds": watch.seconds, "memory": watch.memory(), "evaluation": second_time(score, device)}
    return found | {"untrained": untrained, "precision": one.precision}


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
    """sentence-transformers' trainer with the settings that make it fast: torch's fused attention, TF32 for what stays
    float32, batches made and page-locked by processes beside it, from texts or from tokens made before.

    No setting has it wait for the device in a step. One thing remains, not compiled: transformers' sdpa reads once in
    every forward whether there is padding. Compiled is what is trained; it is evaluated as it is.
    """
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
    from transformers.utils import is_torch_tf32_available

    from benchmarks.inputs import dev_pairs

    cuda = device == "cuda"
    transformer = models.Transformer(encoder, max_seq_length=MAX_LENGTH, model_kwargs={"attn_implementation": "sdpa"})
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), pooling_mode="cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=device)
    lines = Path(sentences).read_text(encoding="utf-8").splitlines()
    evaluator = EmbeddingSimilarityEvaluator(*dev_pairs(), PAIRS_AT_ONCE[device], write_csv=False)

    def score() -> float:
        model.max_seq_length = whole  # as ours: no sentence is cut
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            value = float(evaluator(model)["spearman_cosine"])
        model.max_seq_length = MAX_LENGTH
        return value

    whole = model[0].config.max_position_embeddings
    untrained = score()
    watch = Stopwatch(device)

    class Watched(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == warm_up:
                watch.start()
            elif state.global_step == warm_up + steps:
                watch.stop()

    column = range(len(lines)) if tokenised else lines
    options = {"truncation": True, "max_length": MAX_LENGTH, "padding": "max_length", "return_tensors": "np"}
    tables = model.tokenizer(lines, **options) if tokenised else {}

    def looked_up(numbers: Sequence[int], **_: Any) -> Any:
        longest = MAX_LENGTH if compiled else tables["attention_mask"][numbers].sum(1).max()  # one shape: compiled once
        wanted = ("input_ids", "attention_mask")
        return {name: torch.as_tensor(tables[name][numbers, :longest]) for name in wanted}

    with tempfile.TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=batch,
            max_steps=warm_up + steps,
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,  # it reads the loss in every step
            report_to="none",
            disable_tqdm=True,
            use_cpu=not cuda,
            bf16=bf16,
            tf32=True if cuda and is_torch_tf32_available() else None,
            torch_compile=compiled,
            dataloader_num_workers=WORKERS[device],
            dataloader_persistent_workers=WORKERS[device] > 0,
            dataloader_pin_memory=cuda,
            accelerator_config={"non_blocking": cuda},  # else the copy of every batch waits for the device
            dataloader_drop_last=True,
        )
        SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(dict.fromkeys(("anchor", "positive"), column)),
            loss=losses.MultipleNegativesRankingLoss(model, scale=20.0),
            data_collator=SentenceTransformerDataCollator(preprocess_fn=looked_up) if tokenised else None,
            callbacks=[Watched()],
        ).train()
    found = {"seconds": watch.seconds, "memory": watch.memory(), "evaluation": second_time(score, device)}
    return found | {"untrained": untrained, "precision": "bf16" if bf16 else "fp32"}
