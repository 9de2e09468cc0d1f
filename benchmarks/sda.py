"""(g) SDA's offline part, parsing and editing a corpus: sentences per second the first time, seconds the second time.

Wikipedia and STS-B sentences, repeated with a number appended to fill 100,000 different ones, and the spaCy pipeline
that `SEARCH_BENCH_PARSER` names (a folder or an installed one; default en_core_web_sm). The second time is another
process, which finds everything in the disk cache.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import stsb_sentences, wiki_sentences, write_lines

SENTENCES = 100_000
EDITS = ("pi", "mv", "dn")
MEASURE = "import sys; from benchmarks.sda import measure; measure(*sys.argv[1:])"


def run(runs: int) -> dict[str, Any]:
    """Median seconds per edit; the first time is measured once, being minutes of parsing."""
    found = list(dict.fromkeys(stsb_sentences() + wiki_sentences()))
    texts = [
        f"{text} {i}" if i >= len(found) else text for i, text in zip(range(SENTENCES), _round(found), strict=False)
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_lines(Path(folder) / "corpus.txt", texts)
        for edit in EDITS:
            first = prepared(corpus, edit, Path(folder))
            again = [prepared(corpus, edit, Path(folder)) for _ in range(runs)]
            rows.append(
                {
                    "edit": edit,
                    "sentences": SENTENCES,
                    "first time s": round(first, 2),
                    "sentences per s": round(SENTENCES / first),
                    "second time s": round(statistics.median(again), 3),
                }
            )
    return {"rows": rows, "note": "the parse is part of the first row only: the others find it in the cache"}


def _round(texts: list[str]) -> Any:
    while True:
        yield from texts


def prepared(corpus: Path, edit: str, cache: Path) -> float:
    """Seconds of `sda.prepare` in a fresh process, imports and reading the corpus not counted."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(corpus), edit],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"SEARCH_CACHE_DIR": str(cache)},
    )
    seconds: float = json.loads(done.stdout.splitlines()[-1])
    return seconds


def measure(corpus: str, edit: str) -> None:
    """Prepare the corpus' examples and print the seconds it took."""
    import torch

    from trainables.data.token_cache import DiskCache, TokenCache, tokenizer_encoder
    from trainables.encoders.load import load_encoder
    from trainables.methods.sda.config import SdaConfig
    from trainables.methods.sda.method import prepare
    from trainables.training.method_trial import CachedTextTools

    encoder = load_encoder("builtin:tiny")
    tokens = TokenCache(tokenizer_encoder(encoder.tokenizer), encoder.tokenizer_fingerprint, DiskCache())
    parser = os.environ.get("SEARCH_BENCH_PARSER")
    tools = CachedTextTools("en", parser, encoder, tokens, torch.device("cpu"))
    texts = {"sentence": Path(corpus).read_text(encoding="utf-8").splitlines()}
    started = time.perf_counter()
    examples = prepare(texts, SdaConfig(augmentation=edit), 0, tools)
    assert len(examples) == len(texts["sentence"])
    print(json.dumps(time.perf_counter() - started))
