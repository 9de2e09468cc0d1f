"""Paths of a study, local and behind a URI."""

from __future__ import annotations

import errno
from pathlib import Path

import fsspec
import pytest
from click.testing import CliRunner
from harness import Death, World, make_space

from search.cli.main import main
from search.store.bucket import held, pull
from search.store.journal import alive, exclusive, running_beside, running_here
from search.store.layout import StudyFolder, UserError, absolute, find_study, new_study, studies


def test_storage_is_absolute_or_a_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("runs") == f"{tmp_path}/runs"
    assert absolute(f"file://{tmp_path}/runs") == f"{tmp_path}/runs"
    assert absolute("s3://bucket/runs/") == "s3://bucket/runs"
    assert StudyFolder("s3://bucket/runs", "a-1").trial("t0001") == "s3://bucket/runs/a-1/trials/t0001"


def test_new_studies_are_numbered_and_found(tmp_path: Path) -> None:
    storage = str(tmp_path / "runs")
    first, second = new_study(storage, "a"), new_study(storage, "a")
    assert (first.study, second.study) == ("a-1", "a-2")
    with pytest.raises(UserError, match=r"no study in .*, or name its storage with --storage"):
        find_study(storage, None)  # a folder without a space is no study
    for folder in (first, second):
        folder.space.write_text("name: a")
        folder.journal.write_text("")
    assert [f.study for f in studies(storage)] == ["a-1", "a-2"]
    assert find_study(storage, None).study == "a-2"
    assert find_study(storage, "a-1").study == "a-1"
    assert find_study(storage, "a-1/").study == "a-1"  # as a shell completes a folder's name
    with pytest.raises(UserError, match=r"no study '\./a-1'"):
        find_study(storage, "./a-1")
    with pytest.raises(UserError, match=r"at most 100.*got 'x/y'"):
        new_study(storage, "a", "x/y")


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    folder = new_study(str(tmp_path), "a")
    assert not alive(folder)
    with exclusive(folder):
        assert alive(folder)
        with pytest.raises(UserError, match="study a-1 is being run by another process"), exclusive(folder):
            pass
    assert not alive(folder)


@pytest.mark.parametrize("remote", [False, True])
def test_running_studies_keep_ray_from_being_restarted(
    remote: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second `ray up` runs `search cluster idle` on the head (see cluster.yaml), without requests to a bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    storage = "memory://idle/search" if remote else str(tmp_path / "runs")
    first, second = new_study(storage, "a"), new_study(storage, "a")
    for folder in (first, second):
        folder.space.write_text("name: a")
    monkeypatch.setenv("SEARCH_STORAGE", storage)
    assert CliRunner().invoke(main, ["cluster", "idle"]).exit_code == 0
    with exclusive(second):
        assert running_here(storage) == ["a-2"]
        assert running_beside(first) == ([] if remote else ["a-2"])
        result = CliRunner().invoke(main, ["cluster", "idle"])
    said = "Ray is not restarted: studies run here (a-2). `search stop` pauses them; then `ray up` again\n"
    assert (result.exit_code, result.output) == (1, said)
    assert running_here(storage) == []


def test_disk_without_locks_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A lock that outlives its holder would be worse: the study could never be resumed."""
    fcntl = pytest.importorskip("fcntl")
    folder = new_study(str(tmp_path), "a")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="lock: cannot be locked: Function not implemented"), exclusive(folder):
        pass
    with pytest.raises(UserError, match="cannot be locked"):
        alive(folder)


def test_study_behind_a_uri_resumes_on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The driver crashes and its machine with the working copy is gone; what was sent suffices to resume."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    monkeypatch.setattr("search.store.layout.platformdirs.user_cache_dir", lambda name: str(tmp_path / "one" / name))

    class Remote(World):
        @property
        def folder(self) -> StudyFolder:
            return StudyFolder("memory://runs", "fake-1")

    world = Remote(make_space({"trials": 8}), tmp_path)
    with pytest.raises(Death):
        world.session(die_at=50)
    with held(world.folder, str) as hold:
        hold.push()
    ended = world.folder.journal.read_text().count('"e":"end"')
    assert ended > 0
    monkeypatch.setattr("search.store.layout.platformdirs.user_cache_dir", lambda name: str(tmp_path / "two" / name))
    assert not world.folder.journal.exists()
    found = find_study("memory://runs", None)
    assert found.study == "fake-1"
    pull(found)
    driver = world.session()
    assert driver.ledger.stops == {"completed": 8}
    assert world.folder.journal.read_text().count('"e":"start"') == 8
    filesystem.store.clear()


def test_pause_marker_is_created_and_removed() -> None:
    folder = StudyFolder("memory://pausing", "a-1")
    filesystem = fsspec.filesystem("memory")
    folder.mark_pause(True)
    assert filesystem.exists("/pausing/a-1/PAUSE")
    folder.mark_pause(False)
    folder.mark_pause(False)
    assert not filesystem.exists("/pausing/a-1/PAUSE")


def test_delete_returns_whether_the_path_existed(tmp_path: Path) -> None:
    folder = StudyFolder(str(tmp_path), "a-1")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "f").write_text("")
    assert folder.delete(str(tmp_path / "d"))
    assert folder.delete(str(tmp_path / "f"))
    assert not folder.delete(str(tmp_path / "f"))
    remote = fsspec.filesystem("memory")
    remote.pipe_file("/x/y", b"1")
    assert folder.delete("memory://x/y")
    assert not folder.delete("memory://x/y")
