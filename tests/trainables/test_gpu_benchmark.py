"""The benchmark of cards, on the CPU: its clocks, its counts, its rows, and children that die."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import COLUMNS, Case, _row, cases, matmul_rate, step_operations, together
from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.packing import training

WAITS = """
import time
print("noise")
print("ready", flush=True)
input()
print('{"at": %f}' % time.time(), flush=True)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_children_start_their_clocks_together() -> None:
    slow = python("import time; time.sleep(0.5)" + WAITS)
    first, second = together([python(WAITS), slow], "two")
    assert abs(first["at"] - second["at"]) < 0.4


def test_a_child_that_dies_ends_the_run_with_its_last_line() -> None:
    dying = python("import sys; print('first', file=sys.stderr); sys.exit('no kernel image')")
    with pytest.raises(SystemExit, match="gpu: ours: a child ended with exit code 1: no kernel image"):
        together([python(WAITS), dying], "ours")
    with pytest.raises(SystemExit, match="exit code 3"):  # after the word to start
        together([python("print('ready', flush=True); input(); raise SystemExit(3)")], "ours")


def test_a_child_that_hangs_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(SystemExit, match="exit code -9"):
        together([python("import time; time.sleep(60)")], "ours", limit=0.5)
    assert time.monotonic() - began < 10


def test_what_cannot_be_had_is_said_and_goes_on() -> None:
    assert together([python('print(\'{"failed": "out of memory"}\')')], "ours") == [{"failed": "out of memory"}]
    case = Case("peer", 64, compiled=True)
    row = _row(case, [{case: [{"failed": "out of memory"}]}], 1.0, {}, 10)
    assert row["side"] == "sentence-transformers, compiled"
    assert {row[column] for column in COLUMNS} == {"out of memory"}


def test_figures_of_a_row() -> None:
    ours, peer = Case("ours", 10, trials=2), Case("peer", 10)
    said = {"memory": 3.0, "evaluation": 0.5, "precision": "bf16"}
    taken = {ours: [{"seconds": 4.0, **said}, {"seconds": 5.0, **said}], peer: [{"seconds": 10.0, **said}]}
    row = _row(ours, [taken], work=30.0, rate={"bf16": 600.0}, steps=20)  # 2 x 20 steps in 5 s, the slower one's
    assert row == {
        "side": "ours, 2 at once", "batch": 10, "tokenised before": "yes", "precision": "bf16", "examples/s": 80.0,
        "ms a step": 250.0, "ratio": 4.0, "share of matmul rate": 0.4, "memory, GB": 6.0, "evaluation, s": 0.5,
    }  # fmt: skip


def test_every_way_of_training_is_asked_at_every_batch() -> None:
    found = cases("cuda")
    assert {case.batch for case in found} == {64, 128, 256, 512}
    for batch in (64, 128, 256, 512):
        ways = {(c.side, c.tokenised, c.compiled) for c in found if c.batch == batch and c.trials == 1}
        assert ways == {("ours", t, False) for t in (True, False)} | {
            ("peer", t, c) for t in (True, False) for c in (True, False)
        }
    assert [c.trials for c in found if c.trials > 1] == [2, 4, 8]
    assert found[0] == Case("ours", 64), "the peer takes our precision"


def test_the_matmul_rate_is_that_of_a_warm_device(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter([0, 1, 1, 2, 2, 3, *(t for n in range(10) for t in (10 * n, 10 * n + 4 + n))])
    monkeypatch.setattr("benchmarks.gpu.time.perf_counter", lambda: next(at))
    assert matmul_rate("cpu", torch.float32, 8) == 2 * 8**3 / 4  # the three fast ones are no measurement: they warm up


@pytest.mark.costly
@pytest.mark.real_data
def test_useful_operations_are_those_that_a_packed_step_makes(real_data: Path, tmp_path: Path) -> None:  # noqa: ARG001
    """Against torch's own counter, which sees attention's products, too: they are left out by their names."""
    encoder = make_encoder(tmp_path / "encoder", "tiny")
    sentences = write_lines(tmp_path / "stsb.txt", stsb_sentences()[:64])
    one = training("simcse", "fp32", encoder, sentences, False, torch.device("cpu"), batch_size=16, head="none")
    counter = FlopCounterMode(display=False)
    with counter:
        one._step(one.batches[0])
    counted = counter.get_flop_counts()["Global"]
    linear = sum(n for op, n in counted.items() if str(op) in ("aten.mm", "aten.addmm"))
    column = next(iter(one.examples.columns.values()))
    tokens = sum(len(column[i]) + 2 for i in one.batches[0])  # [CLS] and [SEP]
    loss = 3 * 2 * 16 * 16 * 128  # the cosines of 16 by 16 vectors
    useful = step_operations(encoder, 2 * tokens, 2 * 16)
    assert linear - loss == pytest.approx(useful, rel=1e-9)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.timeout(900)
def test_the_whole_benchmark_fills_every_row(real_data: Path, tmp_path: Path) -> None:  # noqa: ARG001
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks", "gpu", "--runs", "1", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2])
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == len(cases("cpu"))
    for row in rows:
        assert set(row) == {"side", "batch", "tokenised before", *COLUMNS}
        if "compiled" not in row["side"]:  # which wants a C++ compiler
            assert row["examples/s"] > 0
            assert 0 < row["share of matmul rate"] < 1
            assert row["ratio"] > 0
