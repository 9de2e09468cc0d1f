"""A storage that several users share: what another one may not read or write is one line, and hides nothing else."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from harness import World, make_space

from analysis.errors import InputError
from analysis.reading.store import open_store
from search.cli.main import main
from search.console.status import bring_up_to_date, study_status
from search.running.remove import deletable
from search.store.journal import alive, exclusive, running_beside
from search.store.layout import StorageError, StudyFolder, UserError, new_study
from search.tracking import replayer, tracker  # noqa: F401  (here and not as another user, for the same reason)

NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    """Root may do anything; everybody else is bound by the permissions of his own files as well."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def world() -> Iterator[World]:
    """A finished study in a folder that another user can reach, which pytest's own are not."""
    root = Path(tempfile.mkdtemp())
    world = World(make_space({"trials": 2}), root)
    world.session()
    for command in ("list", "logs"):  # imports what it needs: another user may not be let to Python's own files
        CliRunner().invoke(main, [command, "--storage", world.folder.storage])
    for folder, _, files in os.walk(root):
        for name in files:
            os.chmod(Path(folder) / name, 0o444)
        os.chmod(folder, 0o555)
    yield world
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o755)
    shutil.rmtree(root)


def listed(storage: Path | str) -> tuple[str, str]:
    with another_user():
        result = CliRunner().invoke(main, ["list", "--storage", str(storage)])
    assert (result.exit_code, result.exception) == (0, None)
    return result.stdout, result.stderr


def test_a_study_of_another_user_is_seen_running(world: World) -> None:
    folder, own = world.folder, StudyFolder(world.folder.storage, "own-1")
    os.chmod(folder.local, 0o755)
    with exclusive(folder):
        os.chmod(folder.lock, 0o444)
        with another_user():
            assert alive(folder)
            assert study_status(folder)[0].state == "running"
            assert running_beside(own) == [folder.study]
    with another_user():
        assert not alive(folder)
        assert study_status(folder)[0].state == "finished"


def test_study_with_an_unreadable_lock_does_not_count_as_running(world: World) -> None:
    os.chmod(world.folder.local, 0o755)
    world.folder.lock.touch(0o000)
    with another_user():
        with pytest.raises(StorageError, match=r"lock: cannot be locked: Permission denied"):
            alive(world.folder)
        assert running_beside(StudyFolder(world.folder.storage, "own-1")) == []


def test_a_study_that_cannot_be_read_hides_no_other(world: World) -> None:
    other = Path(world.folder.storage) / "other-1"
    os.chmod(world.folder.storage, 0o755)
    shutil.copytree(world.folder.local, other)
    os.chmod(world.folder.journal, 0o000)
    shown, told = listed(world.folder.storage)
    assert "other-1" in shown
    assert told == f"{world.folder.journal}: cannot be read: Permission denied\n"


def test_a_folder_that_cannot_be_entered_is_one_line(world: World) -> None:
    os.chmod(world.folder.local, 0o000)
    line = f"{world.folder.journal}: cannot be read: Permission denied\n"
    for command in ("status", "logs"):
        with another_user():
            result = CliRunner().invoke(main, [command, world.folder.study, "--storage", world.folder.storage])
        assert (result.exit_code, result.stderr) == (2, line)


def test_it_is_not_deleted_in_part(world: World) -> None:
    """Its runs went from MLflow before it turned out that the folder had to stay."""
    os.chmod(world.folder.local, 0o755)
    world.folder.lock.touch(0o444)
    os.chmod(world.folder.local, 0o555)
    with another_user(), pytest.raises(UserError, match="may not be removed by this user; nothing was deleted"):
        deletable(world.folder.storage, world.folder.study)


def test_its_name_is_taken_for_a_new_study(world: World) -> None:
    os.chmod(world.folder.storage, 0o777)
    os.chmod(world.folder.local, 0o000)
    name = re.sub(r"-1$", "", world.folder.study)
    with another_user():
        assert new_study(world.folder.storage, name).study == f"{name}-2"


def test_runs_that_cannot_be_read_are_one_line_at_once(world: World) -> None:
    """MLflow would try to open the file for two minutes."""
    path = Path(world.folder.storage) / "mlflow.db"
    os.chmod(path.parent, 0o755)
    path.touch(0o000)
    with another_user(), pytest.raises(InputError, match=r"mlflow\.db: cannot be read: Permission denied"):
        open_store(f"sqlite:///{path}")


def test_its_tracker_is_left_to_who_may_write(world: World) -> None:
    with another_user():
        said = bring_up_to_date(world.folder, world.space, running=False)
        with pytest.raises(StorageError, match=r"STOP: cannot be written: Permission denied"):
            world.folder.ask_to_stop()
    assert said == f"not brought up to date: {world.folder.local} cannot be written: Permission denied"
