"""The weights that `analysis test` and `export` want are there: of the race, then of best and baseline."""

from __future__ import annotations

from pathlib import Path

from harness import World, make_space

from search.store.journal import fold
from search.store.ledger import Ledger
from search.store.retention import CheckpointRetention


def test_saves_weights_of_rivals_then_of_best_and_baseline(tmp_path: Path) -> None:
    world = World(make_space({"trials": 8, "baseline": "paper"}, encoder="bert-base-uncased"), tmp_path)
    world.session()
    searched = CheckpointRetention(world.folder, fold(world.folder.journal, Ledger()), keep=1).kept()
    assert "t0000" in searched, "the paper's setting"
    world.session(confirm=(3, 4), interrupt_at=world.evaluations + 30)
    ledger = fold(world.folder.journal, Ledger())
    racing = {i for i, r in ledger.trials.items() if r.trial.stage == "confirm" and r.state == "completed"}
    assert len(racing) >= 3
    assert racing <= set(CheckpointRetention(world.folder, ledger, keep=1).kept())
    world.session(confirm=(3, 4))
    ledger = fold(world.folder.journal, Ledger())
    kept = CheckpointRetention(world.folder, ledger, keep=1).kept()
    confirmed: dict[int, list[float]] = {}
    for record in ledger.trials.values():
        if record.trial.stage == "confirm" and record.best is not None:
            confirmed.setdefault(record.trial.number, []).append(record.best)
    leader = max(confirmed, key=lambda number: sum(confirmed[number]) / len(confirmed[number]))
    of_leader = {r.trial.id for r in ledger.by_point["confirm", leader]}
    of_baseline = {r.trial.id for r in ledger.by_point["confirm", 0]}
    assert of_leader | of_baseline <= set(kept)
    assert len(of_baseline) == 4
    assert len(kept) <= len(of_leader | of_baseline) + 1, "nothing else but the one best trial"
