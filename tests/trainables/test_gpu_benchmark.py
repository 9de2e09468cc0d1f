"""The benchmark of cards, on the CPU: its clocks, its counts, its rows, and children that die."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu_sides
from benchmarks.gpu import BATCHES, BLOCK, COLUMNS, SENTENCES, WARM_UP, Case, _row, cases, in_turn
from benchmarks.gpu_sides import WORKERS
from benchmarks.inputs import make_encoder, stsb_sentences, write_lines
from benchmarks.launches import HostWaits

WAITS = """
import time
print("noise")
print("ready", flush=True)
input()
print('{"at": %f}' % time.time(), flush=True)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


OURS, PEER = Case("ours", 64), Case("peer", 64)


def test_children_of_a_case_start_their_clocks_together() -> None:
    slow = python("import time; time.sleep(0.5)" + WAITS)
    first, second = in_turn({OURS: [python(WAITS), slow]})[OURS]
    assert abs(first["at"] - second["at"]) < 0.4


def test_a_case_waits_until_all_are_warm_and_the_one_before_has_ended() -> None:
    slow = python("import time; time.sleep(0.5)" + WAITS)
    long = python("import time; print('ready', flush=True); input(); a = time.time(); time.sleep(0.5); "
                  "print('{\"at\": %f, \"end\": %f}' % (a, time.time()), flush=True)")  # fmt: skip
    began = time.time()
    found = in_turn({OURS: [long], PEER: [slow]})
    assert found[OURS][0]["at"] > began + 0.5
    assert found[PEER][0]["at"] >= found[OURS][0]["end"]


def test_a_child_that_dies_ends_the_run_with_its_last_line() -> None:
    dying = python("import sys; print('first', file=sys.stderr); sys.exit('no kernel image')")
    with pytest.raises(SystemExit, match=r"gpu: Case\(side='ours'.* ended with exit code 1: no kernel image"):
        in_turn({OURS: [python(WAITS), dying]})
    with pytest.raises(SystemExit, match="exit code 3"):  # after the word to start
        in_turn({OURS: [python("print('ready', flush=True); input(); raise SystemExit(3)")]})


def test_a_child_that_hangs_is_ended() -> None:
    began = time.monotonic()
    with pytest.raises(SystemExit, match="exit code -9"):
        in_turn({OURS: [python("import time; time.sleep(60)")]}, limit=0.5)
    assert time.monotonic() - began < 10


def test_what_cannot_be_had_is_said_and_goes_on() -> None:
    failed = {"failed": "out of memory"}
    assert in_turn({OURS: [python('print(\'{"failed": "out of memory"}\')')]}) == {OURS: [failed]}
    case = Case("peer", 64, compiled=True)
    row = _row(case, [{case: [{"failed": "out of memory"}]}], 1.0, {}, 10)
    assert row["side"] == "sentence-transformers, compiled"
    assert {row[column] for column in COLUMNS} == {"out of memory"}


def test_figures_of_a_row() -> None:
    ours, peer = Case("ours", 10, trials=2), Case("peer", 10)
    said = {"memory": 3.0, "evaluation": 0.5, "untrained": 0.4, "precision": "bf16"}
    taken = {ours: [{"seconds": 4.0, **said}, {"seconds": 5.0, **said}], peer: [{"seconds": 10.0, **said}]}
    row = _row(ours, [taken], work=30.0, rate={"bf16": 600.0}, steps=20)  # 2 x 20 steps in 5 s, the slower one's
    assert row == {
        "side": "ours, 2 at once", "batch": 10, "tokenised before": "yes", "precision": "bf16", "examples/s": 80.0,
        "ms a step": 250.0, "ratio": 4.0, "share of matmul rate": 0.4, "memory, GB": 6.0, "evaluation, s": 0.5,
        "untrained": 0.4,
    }  # fmt: skip


def test_a_round_can_be_narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU", "batches=128+512;trials=")
    assert {(case.batch, case.trials) for case in cases("cuda")} == {(128, 1), (512, 1)}
    monkeypatch.setenv("GPU", "trials=3")
    assert [case for case in cases("cuda") if case.trials > 1] == [Case("ours", 64, trials=3)]
    for wrong in ("batch=64", "batches=many", "64", "batches="):
        monkeypatch.setenv("GPU", wrong)
        with pytest.raises(SystemExit, match=f"GPU: expected .* got '{wrong}'"):
            cases("cuda")


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


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_a_block_has_equally_many_examples_and_no_epoch_ends_in_it(kind: str) -> None:
    for batch in BATCHES[kind]:
        assert BLOCK[kind] % batch == 0
        ahead = 2 * WORKERS[kind] + 1  # batches that the loader's processes and accelerate hold ready
        assert WARM_UP[kind] * batch + BLOCK[kind] + ahead * batch <= SENTENCES[kind]


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.parametrize("tokenised", [True, False])
@pytest.mark.parametrize(("side", "waits"), [("ours", {}), ("peer", {"__bool__": 2 * 3})])
def test_nothing_waits_for_the_device_while_steps_are_timed(
    side: str,
    waits: dict[str, int],
    tokenised: bool,
    real_data: Path,  # noqa: ARG001  # skips without data
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But what the library itself reads: whether there is padding, once for each of the two views of three steps."""
    seen = HostWaits()
    waited: list[str] = []

    class Watch(gpu_sides.Stopwatch):
        def start(self) -> None:
            super().start()
            waited.clear()
            seen.__enter__()

        def stop(self) -> None:
            seen.__exit__(None, None, None)
            assert waited == []
            super().stop()
            assert waited == ["cpu"]

    monkeypatch.setattr(gpu_sides, "Stopwatch", Watch)
    monkeypatch.setattr(gpu_sides, "synchronise", waited.append)
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    sentences = write_lines(tmp_path / "stsb.txt", stsb_sentences()[:128])
    found = getattr(gpu_sides, side)(
        encoder=str(make_encoder(tmp_path / "encoder", "tiny")), sentences=str(sentences), device="cpu", batch=8,
        tokenised=tokenised, compiled=False, bf16=False, warm_up=2, steps=3,
    )  # fmt: skip
    assert found["seconds"] > 0
    assert dict(seen.counts) == waits


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
        if "compiled" not in row["side"]:
            assert row["untrained"] == pytest.approx(rows[0]["untrained"], abs=1e-3)
        assert set(row) == {"side", "batch", "tokenised before", *COLUMNS}
        if "compiled" not in row["side"]:  # which wants a C++ compiler
            assert row["examples/s"] > 0
            assert 0 < row["share of matmul rate"] < 1
            assert row["ratio"] > 0
