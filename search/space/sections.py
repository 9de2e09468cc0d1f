"""The sections of a space file as typed settings: data, metric, search, pruner, resources."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from search.space.nodes import Node
from search.space.outside import read_evaluations
from search.space.problems import Problems
from trainables.contract.declaration import Declaration
from trainables.contract.errors import close_to, did_you_mean
from trainables.contract.knobs import Knob, knob, knobs
from trainables.data.catalogue import set_name
from trainables.data.files import ROLES, is_role
from trainables.data.retrieval import dev_metrics
from trainables.data.tokens import PROMPTS

S = TypeVar("S")

SAMPLERS = ("auto", "grid", "random", "tpe", "gp", "cmaes", "nsga2", "qmc")
PRUNERS = (
    "none", "median", "percentile", "successive_halving", "asha", "hyperband", "patient", "threshold", "wilcoxon",
)  # fmt: skip
ENDS = ("trials", "time", "device_hours", "budget", "examples")  # of a search; any of them will do
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # a code of BCP 47: en, zh, pt-BR; mul = several
OF_SCRIPTS = {"train", "dev", "language"}  # keys of data that are handed to a script; all may be missing
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on and what selects.

    Attributes:
        train: named corpus or file; dev: named pair sets or files, folders of retrieval sets; language: its code.
        parser: pipeline of a method that parses, "builtin", or None = the language's default.
        columns: our column name -> the file's, for files with other headings.
        evaluations: those from outside, and the folder (or file) of data of each.
        prompts: text put before every query (all sentences, anchors, dev pairs) and document (positives, negatives).
    """

    train: str
    dev: tuple[str, ...]
    language: str = "en"
    parser: str | None = None
    columns: Mapping[str, str] | None = None
    evaluations: Mapping[str, str | None] | None = None
    prompts: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What selects: `<set>_dev` (Spearman in [-1, 1]), `<set>_ndcg10_dev` (in [0, 1]), or `mean(a_dev,b_dev)`.

    holdout: share of every dev set's pairs that do not select, reported as `<set>_held_dev`, in [0, 1).
    """

    name: str
    mode: str = "max"
    holdout: float = 0.0

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that larger is better."""
        return 1.0 if self.mode == "max" else -1.0


@dataclass(frozen=True, kw_only=True)
class Search:
    """How many trials, proposed how, ended when."""

    sampler: str = knob(
        "auto",
        "what proposes points; auto = gp (a Gaussian process); grid = the exact product (under a pruner, shuffled)",
        choices=SAMPLERS,
    )
    trials: int | None = knob(
        None, "points at most; a grid has as many as its product", kind="int", low=1, optional=True
    )
    seed: int = knob(0, "of the sampler; trials use seed, seed + 1, ... for repeats", low=0, high=2**31 - 1)
    repeats: int = knob(
        1,
        "seeds per point at most, the study sees their mean; further ones go to the best points",
        low=1,
        high=1000,
    )
    time: float | None = knob(None, "wall-clock seconds (8h, 90m, 30s)", kind="float", above=0, optional=True)
    device_hours: float | None = knob(None, "hours summed over trials and GPUs", kind="float", above=0, optional=True)
    budget: float | None = knob(
        None,
        "training in whole trials: examples of all trials over those of the first one planned",
        kind="float",
        above=0,
        optional=True,
    )
    examples: int | None = knob(None, "training examples of all trials together", kind="int", low=1, optional=True)
    patience: float | None = knob(
        None, "stop after this many whole trials' training without improvement", kind="float", above=0, optional=True
    )
    baseline: str = knob("paper", "run the published setting first", choices=("paper", "none"))
    start: tuple[str, ...] = knob(
        (), "studies whose best points are tried first; paper = its settings for other encoders", kind="words"
    )
    max_failed_share: float = knob(0.5, "a study with more failing trials ends", low=0, high=1)
    max_retries: int = knob(2, "new starts of a trial whose process died", low=0, high=100)
    keep_best: int = knob(3, "trials whose checkpoints stay on disk", low=0)
    concurrent: int | None = knob(
        None, "trials at the same time, null = as the resources allow", kind="int", low=1, optional=True
    )


@dataclass(frozen=True, kw_only=True)
class Pruner:
    """What stops trials early. Resource = training examples seen."""

    kind: str = knob("none", "Optuna's pruner, or asha: pause at rungs and promote", choices=PRUNERS)
    states_gb: float = knob(10.0, "of asha: disk for the states of paused trials; others start again", low=0)
    reduction: int = knob(3, "of successive halving, asha and hyperband: 1 in this many goes on", low=2, high=100)
    warmup: int | None = knob(
        None,
        "no pruning before this many examples; null = auto, the schedule's, none for asha",
        kind="int",
        low=0,
        optional=True,
    )
    min_rung: int | None = knob(
        None, "examples of the first rung; null = after a fifteenth of a trial", kind="int", low=1, optional=True
    )
    percentile: float = knob(25.0, "of the percentile pruner: this share of the best is kept", above=0, below=100)
    patience: int = knob(3, "of the patient pruner: evaluations without improvement", low=1)
    lower: float | None = knob(
        None, "of the threshold pruner: a value below ends the trial", kind="float", optional=True
    )


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one trial gets."""

    gpus: float | None = knob(
        None,
        "GPUs of each worker; a fraction lets trials share one; null = 1 where there are any",
        kind="float",
        low=0,
        optional=True,
    )
    cpus: float = knob(1.0, "CPU cores of each worker", above=0)
    workers: int = knob(1, "data-parallel workers of a trial", low=1, high=4096)


def entries(node: Node | None, key: str, known: tuple[str, ...], problems: Problems) -> dict[str, Node]:
    """The entries of a section that have known names; everything else is reported."""
    if node is None:
        return {}
    if not isinstance(node.value, dict):
        problems.add(node.where, key, f"expected a mapping with {', '.join(known)}, got {node.kind()}")
        return {}
    for name in node.value.keys() - known:
        problems.add(node.value[name].where, f"{key}.{name}", "unknown" + did_you_mean(name, known))
    return {name: item for name, item in node.value.items() if name in known}


def settings(
    cls: type[S],
    node: Node | None,
    key: str,
    problems: Problems,
    readers: Mapping[str, Callable[[Any], Any]] | None = None,
) -> S:
    """A section whose fields are knobs. `readers` turn a written value (`8h`) into the knob's (seconds) first.

    Mistaken values are reported and replaced by their defaults, so that checking goes on.
    """
    known = knobs(cls)
    good = {}
    for name, item in entries(node, key, tuple(known), problems).items():
        value = item.plain()
        if readers and name in readers:
            try:
                value = readers[name](value)
            except ValueError as error:
                problems.add(item.where, f"{key}.{name}", str(error))
                continue
        if message := mistake(known[name], value):
            problems.add(item.where, f"{key}.{name}", message)
        else:
            good[name] = known[name].coerce(value)
    return cls(**good)


def mistake(knob_: Knob, value: Any) -> str | None:
    """What is wrong with a value, with a suggestion when it is close to an allowed word."""
    message = knob_.problem(value)
    return message + close_to(value, knob_.choices or ()) if message else None


def seconds(value: Any) -> Any:
    """`8h`, `90m`, `1h30m`, `30s`, `2d` in seconds; numbers are seconds already.

    Raises: ValueError for any other text.
    """
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value.replace(" ", ""))
    if not found or not any(found.groups()):
        raise ValueError(f"expected seconds or a time such as 8h, 90m or 1h30m, got {value!r}")
    return sum(float(n) * unit for n, unit in zip(found.groups(), (86400, 3600, 60, 1), strict=True) if n)


def auto(value: Any) -> Any:
    """`auto` is null: worked out when the study runs."""
    return None if value == "auto" else value


def read_data(node: Node | None, method: Declaration | None, top: Node, problems: Problems) -> Data | None:
    """The data section, or None when train or dev is unusable."""
    scripted = method is not None and method.scripted
    if node is None and scripted:
        return Data(train="", dev=())
    if node is None:
        problems.add(top.where, "data", "missing; expected a mapping with train and dev")
        return None
    before = len(problems.found)
    given = entries(node, "data", tuple(f.name for f in dataclasses.fields(Data)), problems)
    values: dict[str, Any] = {"train": "", "dev": ()} if scripted else {}
    for name in given.keys() - OF_SCRIPTS if scripted else ():
        problems.add(given.pop(name).where, f"data.{name}", "has no meaning for a script, which reads its data itself")
    for name in ("train", "dev"):
        if name not in given and isinstance(node.value, dict) and not scripted:
            problems.add(node.where, f"data.{name}", "missing")
    for name in ("train", "parser", "language"):
        if name in given:
            values[name] = text(given[name], f"data.{name}", problems, optional=name == "parser")
    if (language := values.get("language")) is not None:
        _check_language(language, given["language"], method, problems)
    if "dev" in given:
        values["dev"] = _dev_sets(given["dev"], problems)
    if values.get("parser") and method is not None and not method.parser:
        problems.add(given["parser"].where, "data.parser", f"method {method.name} does not parse")
    if "columns" in given and (columns := given["columns"].plain()) is not None:
        if isinstance(columns, dict) and all(isinstance(v, str) for v in columns.values()):
            values["columns"] = columns
            for role in (role for role in columns if not is_role(role)):
                place = given["columns"].value[role].where
                problems.add(place, f"data.columns.{role}", f"unknown role{did_you_mean(role, [*ROLES, 'negative_1'])}")
        else:
            problems.add(given["columns"].where, "data.columns", "expected a mapping of our column name to the file's")
    if "evaluations" in given and given["evaluations"].value is not None:
        values["evaluations"] = read_evaluations(given["evaluations"], problems)
    if "prompts" in given and given["prompts"].value is not None:
        values["prompts"] = _prompts(given["prompts"], method, problems)
    return Data(**values) if len(problems.found) == before else None


def _check_language(language: str, node: Node, method: Declaration | None, problems: Problems) -> None:
    if not LANGUAGE.fullmatch(language):
        problems.add(node.where, "data.language", f"expected a code such as en, zh or de, got {language!r}")
    elif method is not None and method.languages is not None and language not in method.languages:
        known = ", ".join(method.languages)
        problems.add(node.where, "data.language", f"method {method.name} has rules for {known} only, got {language!r}")


def _prompts(node: Node, method: Declaration | None, problems: Problems) -> dict[str, str] | None:
    given = entries(node, "data.prompts", PROMPTS, problems)
    for name, item in given.items():
        if not isinstance(item.value, str):
            problems.add(item.where, f"data.prompts.{name}", f"expected text, got {item.kind()}")
    if method is not None and not method.prompts:
        problems.add(node.where, "data.prompts", f"method {method.name} does not put prompts before its sentences")
    return {name: str(item.value) for name, item in given.items()} or None


def _dev_sets(node: Node, problems: Problems) -> tuple[str, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    if not items:
        problems.add(node.where, "data.dev", "expected at least one set, got an empty list")
    names = [text(item, "data.dev", problems) for item in items]
    keys: dict[str, str] = {}
    for name, item in zip(names, items, strict=True):
        if name and (other := keys.setdefault(set_name(name), name)) is not None and names.count(name) > 1:
            problems.add(item.where, "data.dev", f"{name!r} is given twice")
        elif name and other != name:
            problems.add(item.where, "data.dev", f"{name!r} and {other!r} would both be called {dev_metrics(name)[0]}")
    return tuple(name for name in names if name)


def check_end(search: Search, root: Node, problems: Problems) -> None:
    """That a search other than a grid ends some time. `root`: the whole document."""
    section = root.value.get("search")
    given = section.value if section is not None and isinstance(section.value, dict) else {}
    ends = [given[name] for name in ENDS if name in given]
    if search.sampler != "grid" and all(end.value is None for end in ends):
        taken = next((end.where for end in ends if end.where.override), root.place("search"))
        problems.add(taken, "search", "no end: give trials, time, device_hours, budget or examples")
    if search.budget is not None and search.examples is not None:
        problems.add(given["examples"].where, "search.examples", "search.budget says it in whole trials: give one")


def check_pruner(pruner: Pruner, search: Search, root: Node, problems: Problems) -> None:
    """What the pruner's settings need of each other and of the search. `root`: the whole document."""
    kind = root.place("pruner", "kind")
    if pruner.kind == "threshold" and pruner.lower is None:
        problems.add(kind, "pruner.lower", "missing; the threshold pruner needs it")
    if pruner.kind == "wilcoxon" and search.repeats < 2:
        problems.add(kind, "pruner.kind", "wilcoxon compares repeats: search.repeats must be at least 2, got 1")


def check_resources(resources: Resources, root: Node, problems: Problems) -> None:
    """A worker trains on one GPU or a share of one; NCCL takes no two workers on the same. `root`: the document."""
    gpus, workers = resources.gpus or 0.0, resources.workers
    where = root.place("resources", "gpus")
    if gpus > 1:
        several = f"; write gpus: 1, workers: {math.ceil(gpus)}" if workers == 1 else ""
        problems.add(where, "resources.gpus", f"a worker trains on one GPU, got {gpus:g}{several}")
    elif 0 < gpus < 1 and workers > 1:
        problems.add(where, "resources.gpus", f"{workers} workers need a whole GPU each (NCCL), got {gpus:g}")


def text(node: Node, key: str, problems: Problems, optional: bool = False) -> str | None:
    """A printable text that is not empty, or None with the reason in `problems`."""
    if node.value is None and optional:
        return None
    if isinstance(node.value, str) and node.value.strip() and node.value.isprintable():
        return node.value
    got = repr(node.value) if isinstance(node.value, str) else node.kind()
    problems.add(node.where, key, f"expected text, got {got}")
    return None
