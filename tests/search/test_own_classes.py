"""Samplers and pruners of other people: classes of Optuna's interface that a space names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from click.testing import CliRunner
from harness import Death, World, agree, make_space
from jsonschema import Draft202012Validator
from processes import below, sigkill

from search.cli.main import main
from search.console.status import print_status
from search.running.result import StudyResult, closing_lines
from search.space import load_space, smoke, space_from
from search.space.json_schema import json_schema
from search.store.journal import Journal, fold
from search.store.layout import StudyFolder, UserError
from search.store.ledger import Ledger
from search.study.sampler_view import SamplerView
from search.tracking.runs import study_note, study_params

ROOT = Path(__file__).parents[2]
MINE = '''
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import TrialState

LOG = []


class Near(RandomSampler):
    """A third of the draws around the best completed point; keeps a log of its hooks."""

    def __init__(self, share=0.3, seed=None):
        if not 0 <= share <= 1:
            raise ValueError(f"share: expected 0 to 1, got {share}")
        super().__init__(seed)
        self.share = share
        LOG.append(("made", seed))

    def before_trial(self, study, trial):
        LOG.append(("before", trial.number))

    def after_trial(self, study, trial, state, values):
        LOG.append(("after", trial.number, trial.params["batch_size"], state.name))

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        done = study.get_trials(states=[TrialState.COMPLETE])
        if done and self._rng.rng.random() < self.share:
            return max(done, key=lambda t: t.value).params[name]
        return super().sample_independent(study, trial, name, distribution)


class Best(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        if trial.number < 4:
            return super().sample_independent(study, trial, name, distribution)
        best, done = study.best_trial, study.get_trials(states=[TrialState.COMPLETE])
        assert (best.value, study.best_params) == (max(t.value for t in done), best.params)
        return best.params[name] if name == "batch_size" else best.params[name] * (1 + trial.number / 1000)


class Wrong(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        return float("nan") if trial.number > 3 else super().sample_independent(study, trial, name, distribution)


class Raises(RandomSampler):
    def sample_independent(self, study, trial, name, distribution):
        return self.unknown


class Below(BasePruner):
    """Prunes what is below the mean of all first values that it was asked about."""

    def __init__(self, after):
        self.after, self.first = after, {}

    def prune(self, study, trial):
        self.first.setdefault(trial.number, trial.intermediate_values[trial.last_step])
        mean = sum(self.first.values()) / len(self.first)
        LOG.append(("asked", trial.number, trial.last_step))
        return len(self.first) > self.after and trial.intermediate_values[trial.last_step] < mean
'''
SPACE = """\
method: simcse
encoder: builtin:tiny
preset: none
data: {train: builtin, dev: [builtin], language: en}
metric: {name: builtin_dev}
params:
  learning_rate: {float: [1.0e-4, 5.0e-3], log: true}
  batch_size: {choice: [16, 32, 64]}
search:
  trials: 8
  sampler: {class: mine.py:Near, args: {share: 0.5}}
pruner: {class: mine.py:Below, args: {after: 3}}
train: {max_examples: 400, eval_examples: 100}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A space file beside the classes that it names."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.yaml").write_text(SPACE)
    return tmp_path / "mine.yaml"


def edited(path: Path, old: str, new: str) -> Path:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("mine.py:Near", "mine.py:Far", 11, "search.sampler.class: mine.py:Far: expected a subclass of optuna's "
         "BaseSampler, got nothing of that name"),
        ("mine.py:Near", "mine.py:Below", 11, "search.sampler.class: mine.py:Below: expected a subclass of optuna's "
         "BaseSampler, got Below"),
        ("mine.py:Near", "os:system", 11, "search.sampler.class: os:system: expected a subclass of optuna's "
         "BaseSampler, got system; a file of yours is named file.py:Name"),
        ("mine.py:Near", "mine:Near", 11, "search.sampler.class: mine:Near: ModuleNotFoundError: No module named "
         "'mine'; a file of yours is named file.py:Name"),
        ("mine.py:Near", "near", 11, "search.sampler.class: expected module:Name of an installed module, or "
         "file.py:Name of a file beside the space, got 'near'"),
        ("mine.py:Near", "other.py:Near", 11, "search.sampler.class: {folder}/other.py: no such file"),
        ("mine.py:Near", "broken.py:Near", 11, "search.sampler.class: {folder}/broken.py:2: ZeroDivisionError: "
         "division by zero"),
        ("{share: 0.5}", "{share: 2}", 11, "search.sampler.args: mine.py:Near: ValueError: share: expected 0 to 1, "
         "got 2"),
        ("{share: 0.5}", "{shar: 2}", 11, "search.sampler.args.shar: unknown for mine.py:Near; did you mean 'share'?"),
        ("{share: 0.5}", "{seed: 2}", 11, "search.sampler.args.seed: the study gives it (search.seed)"),
        ("{share: 0.5}", "[0.5]", 11, "search.sampler.args: expected a mapping of arguments, got a list"),
        ("class: mine.py:Near", "name: random", 11, "search.sampler.name: expected one of tpe, gp, got 'random'"),
        ("class: mine.py:Near", "name: tpe, class: mine.py:Near", 11,
         "search.sampler.name: class is given too; give one of them"),
        ("class: mine.py:Near, ", "", 11, "search.sampler: expected a mapping with class or name, and args"),
        ("class: mine.py:Near, args: {share: 0.5}", "name: tpe, args: {n_startup: 5}", 11,
         "search.sampler.args.n_startup: unknown for tpe; did you mean 'n_startup_trials'?"),
        ("args: {after: 3}", "args: {}", 12, "pruner.args: mine.py:Below: TypeError: Below.__init__() missing 1 "
         "required positional argument: 'after'"),
        ("mine.py:Below", "mine.py:Near", 12, "pruner.class: mine.py:Near: expected a subclass of optuna's "
         "BasePruner, got Near"),
        ("{class: mine.py:Below", "{kind: median, class: mine.py:Below", 12,
         "pruner.kind: class is given too; give one of them"),
        ("{after: 3}}", "{after: 3}, percentile: 3}", 12, "pruner.percentile: unknown beside class; allowed: class, "
         "kind, args, text, warmup, min_rung"),
    ],
)  # fmt: skip
def test_a_bad_class_or_argument_is_one_line(mine: Path, old: str, new: str, line: int, message: str) -> None:
    (mine.parent / "broken.py").write_text("\n1 / 0\n")
    done = CliRunner().invoke(main, ["check", str(edited(mine, old, new))])
    assert done.exit_code == 2
    assert done.output == f"{mine}:{line}: {message.format(folder=mine.parent)}\n"


def test_checking_names_the_classes_and_loads_no_torch(mine: Path) -> None:
    code = "import sys\nfrom search.cli.main import main\n"
    code += "try: main(['check', sys.argv[1]])\nfinally: print('torch' in sys.modules)"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(mine)], env=env, capture_output=True, text=True, check=True)
    first, second, *_, torch = done.stdout.splitlines()
    assert first == f"{mine}: sampler mine.py:Near, up to 8 points"
    assert second.endswith("pruner mine.py:Below")
    assert torch == "False"


def test_a_stored_space_does_without_the_file(mine: Path, tmp_path: Path) -> None:
    space = load_space(mine)
    plain = json.loads(json.dumps(space.resolved()))
    assert [*Draft202012Validator(json_schema()).iter_errors(plain)] == []
    assert [*Draft202012Validator(json_schema()).iter_errors(yaml.safe_load(SPACE))] == []
    (stored := tmp_path / "stored.yaml").write_text(space.to_yaml())
    (mine.parent / "mine.py").write_text("raise RuntimeError('it ran')")
    for again in (load_space(stored), space_from(plain), load_space(stored, run_code=False)):
        assert again.resolved() == space.resolved()
        assert again.classes == space.classes
    assert smoke(space).classes == space.classes
    assert "Sampler `mine.py:Near`, pruner `mine.py:Below`" in study_note(
        space, StudyFolder(str(tmp_path), "study"), None
    )
    assert study_params(space).items() >= {
        ("search.sampler.class", f"{tmp_path}/mine.py:Near"),
        ("search.sampler.args.share", "0.5"),
        ("pruner.class", f"{tmp_path}/mine.py:Below"),
    }
    assert not any("BaseSampler" in text for text in study_params(space).values())


def test_the_sampler_of_the_how_to_copies_values_of_the_best_point(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "sampler.md").read_text(encoding="utf-8")
    (tmp_path / "mine.py").write_text(re.findall(r"```python\n(.*?)```", page, re.S)[0])
    (tmp_path / "mine.yaml").write_text(SPACE.replace("pruner: {class: mine.py:Below, args: {after: 3}}\n", ""))
    sampler = f"search.sampler={{class: {tmp_path / 'mine.py'}:Near, args: {{share: 0.9}}}}"
    driver = World(fake(tmp_path / "mine.yaml", sampler, "search.trials=12"), tmp_path / "runs").session()
    assert driver.status == "finished"
    rates = [record.trial.point["learning_rate"] for record in driver.ledger.trials.values()]
    assert len(set(rates)) < len(rates) == 12


def logged(space: Any) -> list[Any]:
    """The log of the module that the space's file has become."""
    return sys.modules[space.classes["sampler"].loaded("sampler").__module__].LOG  # type: ignore[no-any-return]


def fake(mine: Path, *overrides: str) -> Any:
    return load_space(mine, ["data.dev=[stsb]", "metric.name=stsb_dev", "train={eval_examples: 100}", *overrides])


def test_a_killed_search_resumes_with_the_same_classes(mine: Path, tmp_path: Path) -> None:
    world = World(fake(mine, "search.trials=20", "search.baseline=paper"), tmp_path)
    del (log := logged(world.space))[:]
    with pytest.raises(Death):
        world.session(die_at=60)
    first, log[:] = list(log), []
    driver = world.session()
    assert driver.status == "finished"
    assert driver.ledger.stops.keys() == {"completed", "pruned"}
    agree(world)
    seeds = [seed for what, seed, *_ in [*first, *log] if what == "made"]
    assert len(set(seeds)) == len(seeds) == 2  # a session's own
    begun = [entry[1] for entry in [*first, *log] if entry[0] == "before"]
    assert sorted(set(begun)) == list(range(1, 20))  # the baseline is not its proposal
    ended = {entry[1]: entry[2:] for entry in log if entry[0] == "after"}
    assert ended.keys() <= {entry[1] for entry in log if entry[0] == "before"}
    for number, (place, state) in ended.items():  # lists of numbers are positions for a sampler
        record = driver.ledger.by_point["search", number][0]
        assert (16, 32, 64)[place] == record.trial.point["batch_size"]
        assert state == {"completed": "COMPLETE", "pruned": "PRUNED"}[record.state]
    asked = [entry[1:] for entry in first if entry[0] == "asked"]
    assert [entry[1:] for entry in log if entry[0] == "asked"][: len(asked)] == asked  # its state is made anew


def test_the_best_trial_has_positions_as_all_trials_do(mine: Path, tmp_path: Path) -> None:
    space = fake(mine, f"search.sampler={{class: {tmp_path / 'mine.py'}:Best}}", "search.trials=12")
    driver = World(space, tmp_path / "runs").session()
    assert driver.status == "finished"
    sizes = [record.trial.point["batch_size"] for record in driver.ledger.trials.values()]
    assert len(set(sizes[5:])) == 1, "that of the best point, never the value at the place of the value"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Wrong", "sampler mine.py:Wrong: ValueError: .*nan"),
        ("Raises", "sampler mine.py:Raises, line {}: AttributeError"),
    ],
)
def test_error_in_a_class_ends_the_session_in_one_line(name: str, message: str, mine: Path, tmp_path: Path) -> None:
    line = 1 + MINE.splitlines().index("        return self.unknown")
    world = World(fake(mine, f"search.sampler={{class: {tmp_path / 'mine.py'}:{name}}}"), tmp_path / "runs")
    with pytest.raises(UserError, match="^" + message.format(line)):
        world.session()


def test_after_an_error_of_a_class_the_next_command_is_a_new_study(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The study's own copy of the file raises again."""
    world = World(fake(mine), tmp_path / "runs")
    driver = world.session(interrupt_at=40)
    journal = Journal(world.folder.journal, Ledger())
    reason = "sampler mine.py:Near, line 3: ValueError: no"
    journal.append("session", stage="search")
    journal.append("close", status="failed", reason=reason)
    journal.close()
    known = {"space": world.space, "folder": world.folder, "ledger": driver.ledger}
    result = StudyResult(status="failed", exit_code=1, reason=reason, **known)
    print_status(str(world.root), "fake-1", "table")
    expected = f"correct mine.py, then search run SPACE.yaml --from fake-1 --storage {world.root}"
    assert f"  go on: {expected}\n" in capsys.readouterr().out
    assert f"  go on:        {expected}" in closing_lines(result)
    of_ray = closing_lines(replace(result, reason="Ray"))
    assert f"  go on:        search resume fake-1 --storage {world.root}" in of_ray


def test_arguments_of_a_named_sampler_reach_it(mine: Path) -> None:
    from search.study.samplers import make_sampler

    path = edited(mine, "class: mine.py:Near, args: {share: 0.5}", "name: tpe, args: {n_startup_trials: 3}")
    space = load_space(path)
    assert (space.search.sampler, space.resolved()["search"]["sampler"]["name"]) == ("tpe", "tpe")
    given, plain = make_sampler(space, 1), make_sampler(make_space({"sampler": "tpe"}), 1)
    assert (vars(given)["_n_startup_trials"], vars(plain)["_n_startup_trials"]) == (3, 10)
    assert vars(given)["_group"] is vars(plain)["_group"] is True


@pytest.mark.parametrize("name", ["CmaEsSampler", "NSGAIISampler", "QMCSampler", "GPSampler"])
def test_optunas_other_samplers_search_and_resume(name: str, tmp_path: Path) -> None:
    if name == "CmaEsSampler":
        pytest.importorskip("cmaes")
    params = {"learning_rate": {"float": [1e-6, 1e-3], "log": True}, "batch_size": {"int": [16, 64]}}
    given = {"sampler": {"class": f"optuna.samplers:{name}"}, "trials": 24}
    world = World(make_space(given, params=params), tmp_path)
    world.session(interrupt_at=60)
    driver = world.session()
    assert driver.status == "finished"
    assert len({str(record.trial.point) for record in driver.ledger.trials.values()}) == 24


HUB = """
import optunahub
Mean = optunahub.load_local_module(package="samplers/mean", registry_root={root!r}).Mean
"""
PACKAGE = '''
import optunahub


class Mean(optunahub.samplers.SimpleBaseSampler):
    """The mean of the best three points."""

    def __init__(self, search_space=None, seed=None):
        super().__init__(search_space, seed=seed)

    def sample_relative(self, study, trial, search_space):
        done = sorted((t for t in study.get_trials() if t.value is not None), key=lambda t: t.value)[-3:]
        if not done or not search_space:
            return {}
        means = {name: sum(t.params[name] for t in done) / len(done) for name in search_space}
        return {n: int(v) if isinstance(search_space[n].low, int) else v for n, v in means.items()}
'''


def test_a_package_of_optunahub_searches(tmp_path: Path) -> None:
    """From a local registry: the public one is on GitHub."""
    pytest.importorskip("optunahub")
    package = tmp_path / "registry" / "samplers" / "mean"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (tmp_path / "hub.py").write_text(HUB.format(root=str(tmp_path / "registry")))
    given = {"sampler": {"class": f"{tmp_path}/hub.py:Mean"}}
    driver = World(make_space(given), tmp_path / "runs").session()
    assert (driver.status, driver.ledger.stops) == ("finished", {"completed": 12})


def test_a_class_sees_paused_points_as_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()

    def spied(self: SamplerView, *given: Any, **named: Any) -> list[optuna.trial.FrozenTrial]:
        trials = plain(self, *given, **named)
        seen.update(trial.state.name for trial in trials)
        assert all(trial.value is not None for trial in trials if trial.state.name == "PRUNED")
        return trials

    plain = SamplerView._get_trials
    monkeypatch.setattr(SamplerView, "_get_trials", spied)
    given = {"sampler": {"class": "optuna.samplers:TPESampler"}, "trials": 27, "baseline": "none"}
    driver = World(make_space(given, pruner={"kind": "asha"}), tmp_path).session()
    assert driver.status == "finished"
    assert seen >= {"PRUNED", "COMPLETE"}


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_killed_search_with_own_classes_is_resumed_and_reported(mine: Path, tmp_path: Path) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("MLFLOW_TRACKING_URI", None)

    def command(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *words], cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip

    running = command("search", "run", "mine.yaml", "--name", "own")
    folder, until = StudyFolder(str(tmp_path / "runs"), "own"), time.monotonic() + 600
    while not folder.journal.exists() or fold(folder.journal, Ledger()).ended() < 2:
        assert running.poll() is None, running.stdout and running.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.2)
    sigkill([*below(running.pid)])
    running.kill()
    running.wait()
    (mine.parent / "mine.py").unlink()  # the study has its own copy
    done = command("search", "resume", "own")
    output, _ = done.communicate(timeout=600)
    assert done.returncode == 0, output
    assert sum(fold(folder.journal, Ledger()).stops.values()) == 8
    for words in (("analysis", "best", "--study", "own"), ("analysis", "report", "--study", "own")):
        done = command(*words)
        output, _ = done.communicate(timeout=300)
        assert done.returncode == 0, output
        if words[1] == "report":
            output = next(tmp_path.rglob("*.html")).read_text()
        assert "Searched with sampler mine.py:Near and pruner mine.py:Below." in output
