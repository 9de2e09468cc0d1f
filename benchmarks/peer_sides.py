"""The two sides of `benchmarks.peer`: the settings that both share, and one run of each, timed from start to exit.

Training cuts sentences at `MAX_LENGTH` tokens on both sides (`max_length` of ours, `max_seq_length` of the peer), an
evaluation at none. Long sentences are nearly all cut to the same length, so that the peer has next to nothing to pad:
there packing gains least.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.inputs import (
    SENTENCES,
    data_folder,
    dev_pairs,
    stsb_sentences,
    wiki_sentences,
    write_lines,
    write_sentences,
)

CHILD = "import sys; from benchmarks.peer_sides import peer_search; peer_search(sys.argv[1])"
Result = dict[str, Any]
BATCH, EVALUATIONS, MAX_LENGTH, TEMPERATURE = 64, 4, 32, 0.05
SHORT, LONG = 12, 20  # words at most, at least
RATES = (1e-5, 2e-5, 3e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4)
FEW, EXAMPLES = RATES[1::2], SENTENCES // 2  # of every setting but the first: a quarter of its steps is left

SPACE = """
name: peer
method: {method}
encoder: {encoder}
data: {{train: {texts}, dev: [stsb], language: en}}
metric: {{name: stsb_dev, mode: max}}
params:
  learning_rate: {{grid: {rates}}}
  batch_size: {batch}
  temperature: {temperature}
  max_length: {max_length}
  pooling: avg
  head: none
{own}
search: {{sampler: grid, seed: {seed}, repeats: {repeats}, baseline: none}}
pruner: {{kind: {pruner}}}
resources: {{cpus: 1}}
train: {{epochs: 1, max_examples: {examples}, eval_examples: {eval_examples}, precision: {precision}}}
"""
OWN = {  # of a method, so that its loss is the peer's; a head exists in neither side, wherever it would be used
    "simcse": "  loss_form: one_way",
    "simcse_sup": "  loss_form: hard\n  hard_negative_weight: 0.0\n  head_at: train_only",
}


@dataclass(frozen=True)
class Setting:
    """A race. ours, peer: precisions; texts: mixed, short, long or triplets; prunes: the peer, by Optuna's default."""

    name: str
    ours: str
    peer: str
    texts: str = "mixed"
    rates: tuple[float, ...] = FEW
    examples: int = EXAMPLES
    prunes: bool = False

    @property
    def method(self) -> str:
        return "simcse_sup" if self.texts == "triplets" else "simcse"

    @property
    def columns(self) -> int:
        """Texts of an example that are encoded: a sentence twice, or a triplet."""
        return 3 if self.texts == "triplets" else 2

    @property
    def steps(self) -> int:
        return self.examples // BATCH

    def space(self, encoder: Path, texts: Path, seed: int, pruner: str, repeats: int) -> str:
        """Our side's space file."""
        return SPACE.format(
            method=self.method, own=OWN[self.method], encoder=encoder, texts=texts, rates=list(self.rates), batch=BATCH,
            temperature=TEMPERATURE, max_length=MAX_LENGTH, seed=seed, repeats=repeats, pruner=pruner,
            precision=self.ours, examples=self.examples, eval_examples=self.examples // EVALUATIONS,
        )  # fmt: skip

    def write(self, folder: Path) -> Path:
        """The file that both sides train on: a sentence a line, or triplets under their names."""
        path = folder / f"{self.texts}-{self.examples}.{'tsv' if self.texts == 'triplets' else 'txt'}"
        if self.texts == "mixed":
            return write_sentences(path, self.examples)
        first: list[str] = []
        if self.texts == "triplets":
            head, *pool = (data_folder() / "en_nli_triplets.tsv").read_text(encoding="utf-8").splitlines()
            first = [head]
        elif self.texts == "short":
            pool = [s for s in stsb_sentences() if len(s.split()) <= SHORT]
        else:
            pool = [s for s in wiki_sentences() if len(s.split()) >= LONG]
        return write_lines(path, first + random.Random(0).sample(pool, self.examples))

    def read(self, path: Path) -> list[tuple[str, ...]]:
        """The examples of such a file, as many texts each as are encoded."""
        lines = path.read_text(encoding="utf-8").splitlines()
        if self.texts == "triplets":
            return [tuple(line.split("\t")) for line in lines[1:]]
        return [(line, line) for line in lines]


SETTINGS = (
    Setting("auto", "auto", "fp32", rates=RATES, examples=SENTENCES, prunes=True),
    Setting("fp32", "fp32", "fp32"),
    Setting("bf16", "bf16", "bf16"),
    Setting("fp32 short", "fp32", "fp32", "short"),
    Setting("fp32 long", "fp32", "fp32", "long"),
    Setting("fp32 supervised", "fp32", "fp32", "triplets"),
)


def wanted(narrowed: str) -> list[Setting]:
    """The settings of `settings=fp32+bf16;examples=512;rates=2`; any part may be left out.

    Raises: SystemExit for a setting that there is not, and for examples that do not make whole steps between
        evaluations.
    """
    parts = dict(part.split("=") for part in narrowed.split(";") if part)
    known = {setting.name: setting for setting in SETTINGS}
    found = []
    for name in parts.get("settings", "+".join(known)).split("+"):
        if name not in known:
            raise SystemExit(f"PEER: settings: expected some of {', '.join(known)}, got {name!r}")
        setting = known[name]
        examples = int(parts.get("examples", setting.examples))
        if examples % (BATCH * EVALUATIONS) or not examples:
            raise SystemExit(f"PEER: examples: expected a multiple of {BATCH * EVALUATIONS}, got {examples}")
        rates = setting.rates[: int(parts.get("rates", len(setting.rates)))]
        found.append(replace(setting, examples=examples, rates=rates))
    return found


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

    from trainables.contract.limits import cores

    torch.set_num_threads(cores())  # whatever the environment sets: ours takes all of them, too
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
