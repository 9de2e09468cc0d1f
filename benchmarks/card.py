"""Everything that is open on a card, in one command of at most 8 minutes: `python -m benchmarks card`.

It needs a checkout and what a bare GPU machine has: Python 3.11 or later, torch, transformers, sentence-transformers
and peft; no Ray, MLflow, Optuna, data or network. Sentences are builtin words in lengths like those of STS-B and
Wikipedia, encoders are random in BERT-base's size; on a CPU both are tiny, to try all of it. Rows come in the order of
their importance, are printed when they are measured, and a part for which no time is left has a row with the reason.

The peer is sentence-transformers' model and loss in a plain loop (its trainer needs `datasets`), tokens made before,
bf16 where ours takes it, fused AdamW, clipping and linear decay: the least that its trainer costs.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.card_sides import MAX_LENGTH, peer_step, stepper, timed
from benchmarks.gpu import Child
from benchmarks.inputs import make_encoder, write_lines

LIMIT_S = 450.0  # of the whole command, without its start
BATCHES = {"cuda": (64, 512), "cpu": (16,)}
TRIALS = {"cuda": (1, 2, 4, 8), "cpu": (1, 2)}
SHAPES = {"cuda": ("base", "modernbert/base", "qwen3/base"), "cpu": ("tiny", "modernbert/tiny", "qwen3/tiny")}
STEPS = {"cuda": 20, "cpu": 3}  # of a timed block
SENTENCES = {"cuda": 34 * 512, "cpu": 512}
COMPILED_S = 120.0  # at most for a compiled peer
CHILD = "import sys; from benchmarks.card_sides import {0}; {0}(sys.argv[1])"
Row = dict[str, Any]


class Card:
    """The measurements on one device. Rows are printed as they come."""

    def __init__(self, folder: Path, runs: int) -> None:
        import torch

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.kind, self.folder, self.runs = self.device.type, folder, runs
        torch.set_num_threads(1)  # as in a trial's process
        self.rows: list[Row] = []
        self.began = time.monotonic()
        vocabulary = write_vocabulary(folder / "vocab.txt")
        self.encoders = {
            shape: make_encoder(folder / shape.replace("/", "-"), shape, vocabulary=vocabulary)
            for shape in SHAPES[self.kind]
        }
        self.base = self.encoders[SHAPES[self.kind][0]]
        self.sentences = write_sentences(folder / "sentences.txt", SENTENCES[self.kind])

    def row(self, part: str, what: str, value: Any, unit: str = "") -> None:
        self.rows.append({"part": part, "what": what, "value": value, "unit": unit})
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"{self.seconds():5.0f} s  {part}: {what}: {shown} {unit}".rstrip(), flush=True)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def left(self) -> float:
        return LIMIT_S - self.seconds()

    def play(self) -> None:
        """All parts in the order of their importance. A part that fails leaves a row, and the next one begins."""
        parts: list[tuple[str, float, Callable[[], None]]] = [
            ("checks", 30, self.checks),
            ("training", 20, self.training),
            ("trials at once", 30, self.at_once),
            ("packing", 20, self.packing),
            ("precision", 20, self.precision),
            ("evaluation", 10, self.evaluation),
            ("CUDA graph", 10, self.graph),
            ("compiled peer", 60, self.compiled),
        ]
        for name, least, part in parts:
            if self.left() < least:
                self.row(name, "left out", f"{self.left():.0f} s are left of {LIMIT_S:g}")
                continue
            try:
                part()
            except (Exception, SystemExit) as error:  # a child's death exits
                self.row(name, "failed", f"{type(error).__name__}: {error}".splitlines()[0])

    def checks(self) -> None:
        from benchmarks.card_checks import all_checks

        for name, result in all_checks(self.folder / "checks", self.base, self.device):
            self.row("checks", name, result)
            if self.left() < LIMIT_S / 2:
                return

    def trial(self, batch: int, shape: str = "", padded: bool = False, **params: Any) -> Any:
        from benchmarks.packing import training

        encoder = self.encoders[shape] if shape else self.base
        params = {"pooling": "last" if "qwen3" in shape else "cls", "head": "none", "precision": "auto", **params}
        precision = params.pop("precision")
        return training(
            "simcse", precision, encoder, self.sentences, padded, self.device, dev="builtin",
            batch_size=batch, max_length=MAX_LENGTH, epochs=100, max_examples=batch * 1000, **params,
        )  # fmt: skip

    def timed(self, step: Callable[[], object], part: str, what: str) -> float:
        """A row of milliseconds of a step, and one of the memory that it takes; the median of `runs` blocks."""
        import torch

        if self.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        ms = timed(step, self.device, STEPS[self.kind], self.runs)
        self.row(part, what, ms, "ms a step")
        if self.kind == "cuda":
            self.row(part, f"{what}, memory", torch.cuda.max_memory_allocated(self.device) / 1e9, "GB")
            torch.cuda.empty_cache()
        return ms

    def training(self) -> None:
        for batch in BATCHES[self.kind]:
            ours = self.timed(stepper(self.trial(batch)), "training", f"ours, batch {batch}")
            peer = self.timed(
                peer_step(self.base, self.sentences, batch, self.device), "training", f"peer, batch {batch}"
            )
            self.row("training", f"batch {batch}, peer / ours", peer / ours)

    def at_once(self) -> None:
        """So many processes train at the same time, from the same moment on."""
        batch, steps, alone = BATCHES[self.kind][0], STEPS[self.kind] * 5, 0.0
        for count in TRIALS[self.kind]:
            if self.left() < 25:
                return
            given = {"encoder": str(self.base), "sentences": str(self.sentences), "batch": batch, "steps": steps}
            command = [sys.executable, "-c", CHILD.format("child")]
            with ExitStack() as stack:
                own = [
                    stack.enter_context(Child([*command, json.dumps(given)], f"{count} at once", self.left()))
                    for _ in range(count)
                ]
                for one in own:
                    one.line()  # ready
                for one in own:
                    one.go()
                busy = utilisation() if self.kind == "cuda" else None
                results = [json.loads(one.line()) for one in own]
            rate = count * steps / max(result["seconds"] for result in results)
            alone = alone or rate
            self.row("trials at once", f"{count}, batch {batch}", rate, "steps/s together")
            self.row("trials at once", f"{count}, times one alone", rate / alone)
            if busy is not None:
                self.row("trials at once", f"{count}, card busy", busy, "%")
                self.row("trials at once", f"{count}, memory", sum(r["memory"] for r in results), "GB reserved")

    def packing(self) -> None:
        import torch

        from trainables.encoders.attention import flash_fits

        for shape in SHAPES[self.kind]:
            if self.left() < 10:
                return
            batch = BATCHES[self.kind][0]
            fits = flash_fits(self.device, torch.bfloat16, 64)
            self.row("packing", f"{shape}, flash attention", "used" if fits else "not used on this device")
            ms = {
                way: self.timed(stepper(self.trial(batch, shape, way == "padded")), "packing", f"{shape}, {way}")
                for way in ("packed", "padded")
            }
            self.row("packing", f"{shape}, padded / packed", ms["padded"] / ms["packed"])

    def precision(self) -> None:

        for precision in ("fp32", "bf16", "fp16"):
            one = self.trial(BATCHES[self.kind][0], precision=precision)
            self.timed(stepper(one), "precision", precision)

    def evaluation(self) -> None:
        one = self.trial(BATCHES[self.kind][0])
        one.network.eval()

        def score() -> None:
            with one._autocast():
                one.evaluate(one.world.sharded(one.network.embed))

        self.row("evaluation", "500 pairs", timed(score, self.device, 1, self.runs), "ms")

    def graph(self) -> None:
        """What a captured step could save: forward and backward of one shape, by launches and as a CUDA graph."""
        if self.kind != "cuda":
            self.row("CUDA graph", "left out", "needs a card")
            return
        import torch
        from transformers import AutoModel

        ids = torch.randint(5, 700, (128, MAX_LENGTH), device=self.device)
        mask = torch.ones_like(ids)

        class Plain(torch.nn.Module):
            def __init__(self, model: Any) -> None:
                super().__init__()
                self.model = model

            def forward(self, ids: Any, mask: Any) -> Any:
                with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                    return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

        model = AutoModel.from_pretrained(self.base, attn_implementation="sdpa", add_pooling_layer=False)
        plain = Plain(model).to(self.device).train()
        ms = {}
        for way in ("launches", "graph"):
            one: Any = plain
            if way == "graph":
                one = torch.cuda.make_graphed_callables(plain, (ids, mask), allow_unused_input=True)

            def step(one: Any = one) -> None:
                one(ids, mask).float().sum().backward()
                plain.zero_grad(set_to_none=False)

            ms[way] = self.timed(step, "CUDA graph", f"forward and backward by {way}")
        self.row("CUDA graph", "launches / graph", ms["launches"] / ms["graph"])

    def compiled(self) -> None:
        if self.kind != "cuda":
            self.row("compiled peer", "left out", "needs a card")
            return
        for batch in BATCHES[self.kind]:
            given = {"encoder": str(self.base), "sentences": str(self.sentences), "batch": batch}
            given |= {"runs": self.runs, "steps": STEPS[self.kind]}
            command = [
                sys.executable,
                "-c",
                CHILD.format("compiled"),
            ]
            limit = min(COMPILED_S, self.left())
            try:
                ended = subprocess.run([*command, json.dumps(given)], capture_output=True, text=True, timeout=limit)
                self.row("compiled peer", f"batch {batch}", float(ended.stdout.split()[-1]), "ms a step")
            except subprocess.TimeoutExpired:
                self.row("compiled peer", f"batch {batch}", f"not ready after {limit:.0f} s")
            except (IndexError, ValueError):
                self.row("compiled peer", f"batch {batch}", f"failed: {ended.stderr.strip().splitlines()[-1:]}")


def run(runs: int) -> dict[str, Any]:
    """Every part, each figure the median of `runs` blocks of steps."""
    with scratch_folder() as folder:
        card = Card(folder, runs)
        card.play()
        return {"rows": card.rows, "device": card.kind, "versions": versions()}


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, which also takes what would be cached in the user's home; nothing uses the network."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEARCH_CACHE_DIR": f"{folder}/cache", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        Path(folder, "cache").mkdir(mode=0o700)
        yield Path(folder)


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "sentence-transformers", "peft", "numpy")}


def write_vocabulary(path: Path) -> Path:
    """The builtin tokenizer's words, filled up to the size of BERT's: the embedding has all its rows."""
    from trainables.data.builtin import FOLDER

    known = json.loads((FOLDER / "tiny_en" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    words = sorted(known, key=known.__getitem__)
    return write_lines(path, words + [f"[unused{n}]" for n in range(30522 - len(words))])


def write_sentences(path: Path, count: int) -> Path:
    """Distinct sentences of 4 to 60 builtin words, half of them short as in STS-B, half long as in Wikipedia."""
    import gzip

    from trainables.data.builtin import corpus_file

    rng = random.Random(0)
    with gzip.open(corpus_file("en", "sentences"), "rt", encoding="utf-8") as file:
        words = file.read().split()
    lengths = [min(60, max(4, round(rng.lognormvariate(mean, 0.4)))) for mean in (2.3, 3.0) * (count // 2)]
    return write_lines(path, [" ".join(rng.sample(words, n)) for n in lengths])


def utilisation() -> float | None:
    """Percent of the next two seconds in which the card was busy; None without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    samples = []
    for _ in range(4):
        time.sleep(0.5)
        try:
            samples.append(float(subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.split()[0]))
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return None
    return statistics.fmean(samples)
