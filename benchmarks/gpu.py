"""Trials on one card against sentence-transformers on it: examples a second, memory, seconds of an evaluation.

Unsupervised SimCSE with [CLS] pooling on the sentences of `peer`, cut to 32 tokens, a BERT-base shape in bf16 on a GPU;
a small shape where there is none, in the precision that ours takes there, to try all of it. Both sides take the same
sentences in batches of the same size by their own trainer, each in processes of its own, warm, timed over a block of
steps between two waits for the device. The peer has its fastest settings (`gpu_sides.peer`), plain and with
`torch.compile`, tokenising as it goes and with tokens made before; so has ours. "at once": so many trials share the
device, their examples are summed. Evaluation: the pairs of STS-B dev, the second time; untrained: their score before
training, which shows that both sides evaluate the same weights on the same pairs.

`GPU="batches=64+512;trials=4+8"` narrows (`trials=`: none at once), for a card that is lent for minutes.

A way of training that cannot be had on this machine has the reason in its row; a child that crashes ends the run with
its last line. The ratio is to the peer without compilation at the same batch and tokens, of the same round.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.inputs import make_encoder, write_sentences

BATCHES = {"cuda": (64, 128, 256, 512), "cpu": (16,)}
TRIALS = {"cuda": (2, 4, 8), "cpu": (2,)}  # at once, at the smallest batch
WARM_UP = {"cuda": 10, "cpu": 2}  # steps
BLOCK = {"cuda": 14 * 512, "cpu": 4 * 16}  # examples that are timed, equally many at every batch size
# More than are read: no epoch ends meanwhile, and the peer's loader is as far ahead at the end as at the beginning.
SENTENCES = {"cuda": 34 * 512, "cpu": 256}
LIMIT_S = 900.0  # of a child
SHOWN = 20  # lines of a dead one's errors
CHILD = "import sys; from benchmarks.gpu_sides import main; main(sys.argv[1])"
Result = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A way of training. batch: examples; tokenised: before the clock starts; trials: at once on the device."""

    side: str
    batch: int
    tokenised: bool = True
    compiled: bool = False
    trials: int = 1

    @property
    def name(self) -> str:
        who = "ours" if self.side == "ours" else "sentence-transformers"
        return who + (", compiled" if self.compiled else "") + (f", {self.trials} at once" if self.trials > 1 else "")


def cases(kind: str) -> list[Case]:
    """Every row: per batch, with and without tokens made before, the peer twice and ours; then several of ours.

    Raises: SystemExit where `GPU` names anything but batches and trials, before GPU time is spent.
    """
    given = os.environ.get("GPU", "")
    try:
        wanted = {
            name: [int(n) for n in of.split("+") if n] for name, of in (p.split("=") for p in given.split(";") if p)
        }
    except ValueError:
        wanted = {given: []}
    batches, trials = (wanted.pop(name, default[kind]) for name, default in (("batches", BATCHES), ("trials", TRIALS)))
    if wanted or not batches:
        raise SystemExit(f'gpu: GPU: expected "batches=64+512;trials=4+8" or a part of it, got {given!r}')
    found = []
    for batch in batches:
        for tokenised in (True, False):
            found.append(Case("ours", batch, tokenised))
            found.append(Case("peer", batch, tokenised))
            if kind == "cuda" or tokenised:  # a CPU compiles for minutes
                found.append(Case("peer", batch, tokenised, compiled=True))
    return found + [Case("ours", min(BATCHES[kind]), trials=n) for n in trials]


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` alternated rounds."""
    import torch
    from transformers import AutoConfig, AutoModel

    from trainables.training.machine import in_bf16

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        encoder = make_encoder(Path(folder) / "encoder", "base" if kind == "cuda" else "tiny")
        sentences = write_sentences(Path(folder) / "sentences.txt", SENTENCES[kind])
        model = AutoModel.from_config(AutoConfig.from_pretrained(encoder))
        bf16 = in_bf16("auto", model, torch.device(kind))
        rounds = [play(encoder, sentences, kind, bf16) for _ in range(runs)]
    return {
        "rows": [_row(case, rounds, BLOCK[kind] // case.batch) for case in cases(kind)],
        "device": kind,
        "rounds": [{str(case): results for case, results in taken.items()} for taken in rounds],
    }


def play(encoder: Path, sentences: Path, kind: str, bf16: bool) -> dict[Case, list[Result]]:
    """One round: what every child of every case has measured. Children of a batch size get ready beside each other."""
    found: dict[Case, list[Result]] = {}
    fixed = {
        "encoder": str(encoder), "sentences": str(sentences), "device": kind, "bf16": bf16, "warm_up": WARM_UP[kind],
    }  # fmt: skip
    for _, together in groupby(cases(kind), key=lambda case: (case.batch, case.tokenised, case.trials > 1)):
        commands = {}
        for case in together:
            given = json.dumps(asdict(case) | fixed | {"steps": BLOCK[kind] // case.batch})
            commands[case] = [[sys.executable, "-c", CHILD, given]] * case.trials
        found |= in_turn(commands)
    return found


def in_turn(commands: Mapping[Case, Sequence[Sequence[str]]], limit: float = LIMIT_S) -> dict[Case, list[Result]]:
    """Start all children, wait until they are warm, then time case after case, a case's own together.

    Raises: SystemExit with the last line of one that crashes, or takes longer than `limit` seconds.
    """
    found: dict[Case, list[Result]] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        children = {
            case: [stack.enter_context(Child(command, str(case), limit)) for command in own]
            for case, own in commands.items()
        }
        # "ready", or what prevented it
        first = {case: [child.line() for child in own] for case, own in children.items()}
        print(f"warm after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        for case, own in children.items():
            for child, line in zip(own, first[case], strict=True):
                if line == "ready":
                    child.go()
            ended = zip(own, first[case], strict=True)
            found[case] = [json.loads(child.line() if line == "ready" else line) for child, line in ended]
            print(f"{case}: {found[case]}", file=sys.stderr, flush=True)
    return found


class Child:
    """A process that prints a line, waits for one, and prints another. What else it prints is shown if it fails."""

    def __init__(self, command: Sequence[str], name: str, limit: float) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._limit = threading.Timer(limit, self._process.kill)

    def __enter__(self) -> Child:
        self._limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._limit.cancel()
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def line(self) -> str:
        """Its next line that is "ready" or JSON: libraries print, too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n" or line.startswith('{"'):
                return line.strip()
        code = self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace").strip().splitlines()
        print("\n".join(errors[-SHOWN:-1]), file=sys.stderr)
        raise SystemExit(f"gpu: {self._name}: a child ended with exit code {code}: {''.join(errors[-1:])}")

    def go(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; `line` reports it
            self._process.stdin.write("go\n")
            self._process.stdin.flush()


def _row(case: Case, rounds: list[dict[Case, list[Result]]], steps: int) -> Result:
    row: Result = {"side": case.name, "batch": case.batch, "tokenised before": "yes" if case.tokenised else "no"}
    if failed := next((r["failed"] for taken in rounds for r in taken[case] if "failed" in r), ""):
        return row | dict.fromkeys(COLUMNS, failed)
    plain = Case("peer", case.batch, case.tokenised)
    rates, ratios = [], []
    for taken in rounds:
        rates.append(case.trials * steps / max(r["seconds"] for r in taken[case]))
        if "seconds" in taken[plain][0]:
            ratios.append(rates[-1] * taken[plain][0]["seconds"] / steps)
    median = statistics.median(rates)
    results = [r for taken in rounds for r in taken[case]]
    values = (
        results[0]["precision"],
        round(median * case.batch, 1),
        round(1000 * case.trials / median, 2),
        round(statistics.median(ratios), 3) if ratios else "no peer",
        round(case.trials * max(r["memory"] for r in results), 2),
        round(statistics.median(r["evaluation"] for r in results), 3),
        round(results[0]["untrained"], 4),
    )
    return row | dict(zip(COLUMNS, values, strict=True))


COLUMNS = (
    "precision",
    "examples/s",
    "ms a step",
    "ratio",
    "memory, GB",
    "evaluation, s",
    "untrained",
)
