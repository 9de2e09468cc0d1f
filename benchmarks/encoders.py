"""docs/encoders.md: every family of encoders through a full-length trial, on tiny random weights; failures are printed.

Each family is loaded (and measured, as every encoder is), trained by unsupervised SimCSE with dropout 0.3 and a prompt,
trained again with a pause and a resumption in the middle, and exported. Cells say what happened, not what should.
"""

from __future__ import annotations

import importlib.metadata
import random
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tiny_encoders import FAMILIES, SENTENCES, WORDS, Family, save_tiny, silent

PAGE = Path(__file__).parents[1] / "docs" / "encoders.md"
AGREEMENT = 1e-5  # float32; relative to the largest value, at least 1
PROMPT = "the old "
MADE_FOR_NOT_FINDING = 0.0  # dropout of a family that has none


@dataclass(frozen=True)
class Row:
    """What happened with one family. A text that starts with "refused" is the line a user gets."""

    family: str
    loads: str
    pooling: str = ""
    dropout: str = ""
    batches: str = ""
    resumes: str = ""
    exports: str = ""
    bidirectional: str = ""
    lora: str = ""


HEADINGS = {
    "family": "family", "loads": "loads", "pooling": "its pooling", "dropout": "dropout on", "batches": "batches",
    "resumes": "resumes", "exports": "SentenceTransformer agrees", "bidirectional": "`bidirectional: true`",
    "lora": "LoRA",
}  # fmt: skip


def run(runs: int = 1) -> dict[str, Any]:
    """Try every family, and write the page."""
    del runs
    with tempfile.TemporaryDirectory() as folder:
        rows = [tried(family, Path(folder) / family.model_type) for family in FAMILIES]
    PAGE.write_text(page(rows), encoding="utf-8")
    return {"rows": [asdict(row) for row in rows]}


def tried(family: Family, folder: Path) -> Row:
    """One family through a trial, a resumed trial and an export.

    Args:
        folder: new; the encoder, data, trials and exports are left there.
    """
    from trainables.contract.errors import EncoderError
    from trainables.encoders.load import load_encoder

    encoder = save_tiny(family, folder / "encoder")
    try:
        facts = load_encoder(str(encoder)).facts
    except EncoderError as error:
        return Row(family.model_type, "refused: " + str(error).partition(": ")[2])
    data = _write_data(folder)
    params = {"pooling": facts.pooling, "dropout": 0.3 if facts.drops else MADE_FOR_NOT_FINDING, "head": "none"}
    whole = _trained(folder / "whole", encoder, data, params)
    paused = _trained(folder / "paused", encoder, data, params, pause=True)
    row = {
        "family": family.model_type,
        "loads": "works",
        "pooling": facts.pooling,
        "dropout": " and ".join(facts.drops) if facts.drops else "refused above 0: the family has none",
        "batches": "packed" if not facts.packing_note else "padded (noted)",
        "resumes": whole if whole != "works" else paused if paused != "works" else _equal(folder),
        "exports": _export_agrees(folder / "whole", folder / "export") if whole == "works" else "-",
        "bidirectional": "-" if facts.first_sees else "refused",
    }
    if facts.dropout_problem:
        row["dropout"] = f"refused above 0: {facts.dropout_problem}"
    if facts.bidirectional:
        end = _trained(folder / "both", encoder, data, {**params, "bidirectional": True})
        row["bidirectional"] = _export_agrees(folder / "both", folder / "both-export") if end == "works" else end
    row["lora"] = _with_adapters(folder, encoder, data, params)
    return Row(**row)


def page(rows: list[Row]) -> str:
    """docs/encoders.md."""
    lines = [
        "# Encoders",
        "",
        "For users who choose an encoder: which of 44 families load, and which features work with each.",
        "`python -m benchmarks encoders` writes this page. It trains a tiny random encoder (2 layers, width 32) of",
        "each family; a test repeats this and compares. Versions: transformers "
        f"{importlib.metadata.version('transformers')}, sentence-transformers "
        f"{importlib.metadata.version('sentence-transformers')},",
        f"torch {importlib.metadata.version('torch').partition('+')[0]}, float32 on a CPU.",
        "",
        "- *loads*: `works`, or the error message. A family that is not listed is checked in the same way when it is",
        "  first loaded.",
        "- *its pooling*: the single-token pooling that the family is made for. `avg` works with every family.",
        "- *dropout on*: the layers that the searched dropout p affects, measured as the share of dropped values.",
        "  Llama-like families have no dropout on hidden states.",
        "- *batches*: packed, or `padded (noted)`: padded, with a note by `search check` that gives the reason.",
        "- *resumes*: a trial that was paused half-way and resumed has the same weights as an uninterrupted one.",
        "- *SentenceTransformer agrees*: the vectors of the exported model equal those of the trial within",
        f"  {AGREEMENT:g} of the largest value, prompt included.",
        "- *`bidirectional: true`*: the same for a trial with bidirectional attention.",
        "- *LoRA*: a trial with adapters on all linear layers. Every adapter was trained, and the export with merged",
        "  adapters agrees.",
        "",
        "| " + " | ".join(HEADINGS.values()) + " |",
        "|" + "---|" * len(HEADINGS),
    ]
    lines += ["| " + " | ".join(getattr(row, name) or "-" for name in HEADINGS) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _write_data(folder: Path) -> dict[str, Any]:
    rng = random.Random(0)
    train, pairs = folder / "train.txt", folder / "pairs.tsv"
    train.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 7))) + "\n" for _ in range(32)))
    rows = [f"{a}\t{b}\t{rng.random():.2f}\n" for a in SENTENCES for b in SENTENCES[:2]]
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(rows))
    return {"train": str(train), "dev": [str(pairs)], "language": "en", "prompts": {"query": PROMPT}}


def _trained(
    folder: Path, encoder: Path, data: Mapping[str, Any], params: Mapping[str, Any], pause: bool = False
) -> str:
    """Train four steps; "works", or the line of what went wrong."""
    from trainables.contract.trial import TrialSpec
    from trainables.training.trial import run_trial

    own = {"batch_size": 8, "max_length": 16, "eval_examples": 16, "precision": "fp32", "learning_rate": 1e-3}
    spec = TrialSpec(
        method="simcse",
        encoder=str(encoder),
        data=data,
        metric="pairs_dev",
        folder=str(folder),
        params=own | {**params},
    )
    decisions = iter(["pause"] if pause else [])
    outcome = run_trial(spec, lambda _: next(decisions, "go"))  # type: ignore[arg-type,return-value]
    if pause and outcome.stop == "paused":
        outcome = run_trial(spec, lambda _: "go")
    return "works" if outcome.stop == "completed" else f"refused: {outcome.reason}"


def _with_adapters(folder: Path, encoder: Path, data: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Train adapters beside all linear layers, check that each of them has learnt something, export."""
    from trainables.training.checkpoint import TrialFiles

    end = _trained(folder / "lora", encoder, data, {**params, "lora.rank": 4})
    if end != "works":
        return end.replace(f"{encoder} ", "it ")
    ups = {n: w for n, w in TrialFiles(str(folder / "lora")).load_best()[0].items() if ".lora_B." in n}
    if still := [name for name, weight in ups.items() if not weight.any()]:
        return f"refused: {still[0]} learns nothing"
    return _export_agrees(folder / "lora", folder / "lora-export")


def _equal(folder: Path) -> str:
    import torch

    from trainables.training.checkpoint import TrialFiles

    one, other = (TrialFiles(str(folder / name)).load_best()[0] for name in ("whole", "paused"))
    same = all(torch.equal(one[name], other[name]) for name in one)
    return "works" if same else "refused: the weights differ"


def _export_agrees(trial: Path, folder: Path) -> str:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from analysis.checkpoints.export import export
    from analysis.checkpoints.trained import load_trained

    trained = load_trained(str(trial))
    ours = trained.embed(SENTENCES)
    export(trained, folder, "# tiny\n")
    with silent():
        model = SentenceTransformer(str(folder), device="cpu")
        theirs = model.encode(list(SENTENCES), convert_to_numpy=True)
        alone = [model.encode([sentence])[0] for sentence in SENTENCES]  # without padding other kernels run
    worst = max(float(np.abs(t - ours).max()) for t in (theirs, alone)) / max(1.0, float(np.abs(ours).max()))
    return "works" if worst <= AGREEMENT else f"refused: differs by {worst:.0e}"
