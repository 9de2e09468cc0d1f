"""A trial that trains the rows of the words in use against one that trains the whole table of 250,002.

SimCSE on a random encoder of XLM-R's family (6 layers, width 384: the table is nine tenths of it) on STS-B: BERT's word
pieces in XLM-R's number of rows, float32, one thread, a process of its own for each case. Memory is the most that
training and evaluating took above what the process held before its first step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import SHAPES, data_folder, stsb_sentences, write_lines
from benchmarks.micro_batch import held

ROWS = 250_002
BATCH, STEPS = 64, 24
MB = 2**20


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` alternated processes of each case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = make_encoder(folder / "encoder")
        sentences = write_lines(folder / "stsb.txt", stsb_sentences())
        taken: dict[str, list[dict[str, float]]] = {"whole": [], "in use": []}
        for i in range(runs):
            for which, found in taken.items():
                command = [sys.executable, "-m", "benchmarks.words_in_use", str(encoder), str(sentences), which]
                done = subprocess.run(
                    [*command, str(folder / f"{which}{i}")], check=True, capture_output=True, text=True
                )
                found.append(json.loads(done.stdout.splitlines()[-1]))
    medians = {
        which: {k: statistics.median(one[k] for one in found) for k in found[0]} for which, found in taken.items()
    }
    same = len({one["loss"] for found in taken.values() for one in found}) == 1
    rows = [
        {"rows": which, **{k: round(v, 2) for k, v in median.items() if k != "loss"}}
        for which, median in medians.items()
    ]
    return {"rows": rows, "the same losses": same}


def make_encoder(folder: Path) -> Path:
    """XLM-R's family and number of rows, with BERT's tokenizer."""
    import torch
    from transformers import BertTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    layers, width, heads = SHAPES["minilm"]
    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=ROWS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=514, pad_token_id=0, bos_token_id=101, eos_token_id=102,
    )  # fmt: skip
    XLMRobertaModel(config).save_pretrained(folder)
    pieces = (data_folder() / "vocab_bert_base_uncased.txt").read_text(encoding="utf-8").split("\n")[:-1]
    vocabulary = write_lines(folder / "vocab.txt", pieces + [f"[unused-{i}]" for i in range(ROWS - len(pieces))])
    BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True).save_pretrained(folder)
    return folder


def case(encoder: Path, sentences: Path, which: str, folder: Path) -> dict[str, float]:
    """A trial of one case, in this process."""
    import torch

    from trainables.contract.trial import TrialSpec
    from trainables.encoders import words_in_use
    from trainables.training.loop import Training
    from trainables.training.machine import use_large_pages
    from trainables.training.trial import run_trial

    use_large_pages()
    torch.set_num_threads(1)
    if which == "whole":
        words_in_use.LARGE = 2.0  # no share is as large
    seconds: list[float] = []
    before: list[float] = []
    step = Training._step

    def timed(self: Any, batch: Any) -> None:
        if not before:
            Path("/proc/self/clear_refs").write_text("5")  # the peak so far, of reading the encoder, is forgotten
            before.append(held("VmRSS"))
        began = time.process_time()
        step(self, batch)
        seconds.append(time.process_time() - began)

    Training._step = timed  # type: ignore[method-assign]  # only here
    spec = TrialSpec(
        method="simcse",
        encoder=str(encoder),
        data={"train": str(sentences), "dev": ["stsb"], "language": "en"},
        metric="stsb_dev",
        folder=str(folder),
        params={
            "batch_size": BATCH,
            "max_examples": BATCH * STEPS,
            "eval_examples": BATCH * STEPS // 2,
            "precision": "fp32",
        },
    )
    losses: list[float] = []

    def report(evaluation: Any) -> Any:
        losses.append(evaluation.metrics["loss"])
        return "pause" if len(losses) == 1 else "go"

    outcome = run_trial(spec, report)
    assert outcome.stop == "paused", outcome.reason
    size = {path.name: path.stat().st_size / MB for path in folder.rglob("*") if path.is_file()}
    return {
        "ms a step": 1000 * statistics.median(seconds[1:]),
        "MiB while training": held("VmHWM") - before[0],
        "MiB checkpoint": size["weights.safetensors"],
        "MiB state": size["state.pt"],
        "loss": losses[0],
    }


if __name__ == "__main__":
    print(json.dumps(case(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))))
