"""In what both sides of `benchmarks.peer` are alike, setting by setting: sentences, rates, steps, loss, precision.

Training cuts sentences at `MAX_LENGTH` tokens on both sides (`max_length` of ours, `max_seq_length` of the peer), an
evaluation at none. Long sentences are nearly all cut to the same length, so that the peer has next to nothing to pad:
there packing gains least.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.inputs import SENTENCES, data_folder, stsb_sentences, wiki_sentences, write_lines, write_sentences

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
