"""A batch of 4,096 encoded in pieces of 64 (GradCache): memory and time an example, beside batches encoded whole.

SimCSE on an encoder of MiniLM's shape, STS-B train sentences, float32, one thread, a process of its own for each case.
Memory is the most that the process ever held, above what it held before its first step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.inputs import make_encoder, stsb_sentences, write_lines

CASES: tuple[tuple[int, int | None], ...] = ((64, None), (256, None), (4096, 64))  # batch, micro_batch
STEPS = {64: 24, 256: 8, 4096: 2}  # timed, after one that warms up


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` alternated processes of each case."""
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(Path(folder) / "minilm", "minilm")
        sentences = write_lines(Path(folder) / "stsb.txt", stsb_sentences())
        taken: dict[tuple[int, int | None], list[dict[str, float]]] = {case: [] for case in CASES}
        for _ in range(runs):
            for batch, micro in CASES:
                command = [sys.executable, "-m", "benchmarks.micro_batch", str(encoder), str(sentences), str(batch)]
                done = subprocess.run([*command, str(micro or 0)], check=True, capture_output=True, text=True)
                taken[batch, micro].append(json.loads(done.stdout.splitlines()[-1]))
    rows: list[dict[str, Any]] = []
    for (batch, micro), found in taken.items():
        median = {key: statistics.median(one[key] for one in found) for key in found[0]}
        rows.append({"batch": batch, "micro_batch": micro or "whole", **{k: round(v, 2) for k, v in median.items()}})
    fits = rows[0]["ms an example"]
    return {"rows": [{**row, "time against 64": round(row["ms an example"] / fits, 2)} for row in rows]}


def case(encoder: Path, sentences: Path, batch: int, micro: int | None) -> dict[str, float]:
    """Of one case, in this process."""
    import torch

    from benchmarks.packing import timed_step, training
    from trainables.training.machine import use_large_pages

    use_large_pages()
    torch.set_num_threads(1)
    params: dict[str, Any] = {"batch_size": batch, "micro_batch": micro, "epochs": 3, "temperature": 0.05}
    one = training("simcse", "fp32", encoder, sentences, False, torch.device("cpu"), **params)
    before = held("VmRSS")
    timed_step(one)
    seconds = [timed_step(one)[1] for _ in range(STEPS[batch])]
    return {"ms an example": 1000 * statistics.median(seconds) / batch, "MiB": held("VmHWM") - before}


def held(what: str) -> float:
    """MiB of this process, by the kernel's name: VmRSS now, VmHWM at most."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    print(json.dumps(case(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) or None)))
