"""Optuna's file is a copy: whatever becomes of it, the journal makes it again and nothing runs twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Death, World, make_space

from search.store.journal import read
from search.study.samplers import key


def lost(path: Path) -> None:
    path.unlink()


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{]not json\n" * 20)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another_study(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1] + random.Random(0).sample(lines[1:], len(lines) - 1)))


DAMAGE = (lost, halved, garbage, emptied, of_another_study)


@pytest.mark.parametrize("settings", [{"sampler": "random"}, {"sampler": "tpe", "repeats": 2}], ids=["random", "tpe"])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("die_at", [60, 95])
def test_a_damaged_copy_is_made_again(
    damage: Callable[[Path], None], die_at: int, settings: dict[str, object], tmp_path: Path
) -> None:
    space = make_space({"trials": 8, **settings}, pruner={"kind": "median"})
    world = World(space, tmp_path / "disturbed")
    with pytest.raises(Death):
        world.life(die_at=die_at)
    before = {i: record.state for i, record in ledger_of(world).items() if not record.open}
    damage(world.folder.optuna)
    driver = world.life()
    after = driver.ledger.trials
    assert driver.status == "finished"
    assert len(driver.ledger.points) == 8
    assert {i: after[i].state for i in before} == before, "what had ended is as it was"
    ran = [(key(r.trial.point), r.trial.seed) for r in after.values()]
    assert len(set(ran)) == len(ran), "a point ran twice on one seed"
    ends = [e["id"] for e in read(world.folder.journal) if e["e"] == "end"]
    assert len(set(ends)) == len(ends) == len(after)


def test_an_undamaged_copy_is_left_alone(tmp_path: Path) -> None:
    world = World(make_space({"trials": 6}), tmp_path)
    with pytest.raises(Death):
        world.life(die_at=50)
    world.life()
    assert not list(world.folder.local.glob("optuna.log.damaged*"))


def test_the_copy_made_again_is_the_copy(tmp_path: Path) -> None:
    """A random search with a pruner goes on as if nothing had happened: the pruner has all that it had seen."""
    space = make_space({"trials": 10, "sampler": "random"}, pruner={"kind": "successive_halving", "reduction": 2})
    plain, damaged = World(space, tmp_path / "a"), World(space, tmp_path / "b")
    for world in (plain, damaged):
        with pytest.raises(Death):
            world.life(die_at=80)
    damaged.folder.optuna.unlink()
    one, other = plain.life().ledger, damaged.life().ledger
    assert {i: (r.state, r.best) for i, r in one.trials.items()} == {
        i: (r.state, r.best) for i, r in other.trials.items()
    }


def ledger_of(world: World):
    from search.store.journal import fold
    from search.store.ledger import Ledger

    return fold(world.folder.journal, Ledger()).trials
