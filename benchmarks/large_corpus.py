"""A corpus of 10 million lines: memory and seconds until a trial can train, the first time and the second.

The lines are sentences of STS-B, each repetition with two words exchanged (LARGE_LINES: another number of them;
LARGE_FOLDER: a folder that stays, where the text is made once). A trial's process reads the corpus, tokenises it with
BERT's vocabulary as unsupervised SimCSE does, and takes the tokens of 200 shuffled batches of 64.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.inputs import make_encoder, stsb_sentences

LINES = 10_000_000
BATCHES = 200


def write_corpus(path: Path, lines: int) -> None:
    """STS-B's sentences again and again, two words of each exchanged."""
    base, rng = stsb_sentences(), random.Random(0)
    words = sorted({word for line in base for word in line.split()})
    left = lines
    with path.open("w", encoding="utf-8") as file:
        while left:
            for line in base[:left]:
                own = line.split(" ")
                for _ in range(2):
                    own[int(rng.random() * len(own))] = words[int(rng.random() * len(words))]
                file.write(" ".join(own) + "\n")
            left -= min(left, len(base))


def start(corpus: str, encoder: str) -> dict[str, Any]:
    """What a trial's process does before its first step, and what that takes. Runs in a process of its own."""
    import torch

    from trainables.contract.registry import declared
    from trainables.data.sets import load_corpus
    from trainables.data.token_cache import TokenCache
    from trainables.encoders.load import fingerprints, load_encoder, token_ids
    from trainables.methods.method import load_method
    from trainables.training.method_trial import CachedTextTools

    source = load_encoder(encoder)
    tools = CachedTextTools(
        "en", None, source, TokenCache(token_ids(source, "en"), fingerprints(source)[1]), torch.device("cpu")
    )
    method, config = load_method("simcse"), declared("simcse").config()
    before = _kib("RssAnon")
    peak, stop = [before], threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            peak.append(_kib("RssAnon"))

    watch = threading.Thread(target=look)
    watch.start()
    began, cpu = time.perf_counter(), time.process_time()
    texts = load_corpus(corpus, "en")
    read = time.perf_counter()
    examples = method.prepare(texts.columns, config, 0, tools)
    tokenised = time.perf_counter()
    for _, batch in zip(range(BATCHES), method.plan(examples, config, 0), strict=False):
        method.views(examples, batch, config, None)  # type: ignore[arg-type]  # SimCSE draws nothing
    done = time.perf_counter()
    stop.set()
    watch.join()
    return {
        "lines": len(texts), "reading s": read - began, "tokens s": tokenised - read,
        f"{BATCHES} batches s": done - tokenised, "CPU s": time.process_time() - cpu,
        "memory before MiB": before / 1024, "peak above MiB": (max(peak) - before) / 1024,
        "text MiB": os.path.getsize(corpus) / 2**20,
    }  # fmt: skip


def _kib(field: str) -> int:
    """Of /proc/self/status: RssAnon is memory that is no page of a file, which the system may drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def run(runs: int) -> dict[str, Any]:
    """A first start and `runs` further ones."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(os.environ.get("LARGE_FOLDER", folder))
        lines = int(os.environ.get("LARGE_LINES", LINES))
        corpus, encoder = scratch / f"{lines}.txt", make_encoder(scratch / "encoder", "tiny")
        if not corpus.exists():
            write_corpus(corpus, lines)
        rows = []
        for number in range(1 + runs):
            call = f"start({str(corpus)!r}, {str(encoder)!r})"
            code = f"import json; from benchmarks.large_corpus import start; print(json.dumps({call}))"
            env = os.environ | {"SEARCH_CACHE_DIR": str(scratch / "cache"), "TOKENIZERS_PARALLELISM": "true"}
            done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
            rows.append({"start": "first" if number == 0 else "again", **json.loads(done.stdout.splitlines()[-1])})
        tokens = sum(f.stat().st_size for f in (scratch / "cache").glob("tokens-*"))
    return {"rows": rows, "tokens_mib": tokens / 2**20}
