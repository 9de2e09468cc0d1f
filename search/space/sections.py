"""The sections of a space file as typed settings: data, metric, search, pruner, resources.

What a key takes and means is written once, at its field: reading and the JSON schema follow from it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from search.space.data_sets import SETS, TEXT, dev_sets, own_columns, train_sets
from search.space.nodes import Node, Problems, Schema, entries, text
from trainables.contract.config import AUTO, Hyperparameter, hyperparameter, hyperparameters
from trainables.contract.declaration import Declaration
from trainables.contract.errors import PluginError, close_to
from trainables.contract.registry import evaluation_named
from trainables.contract.trial import DEV_SUFFIX, HELD, at_width, metric_parts, normal_metric
from trainables.data.catalogue import set_name
from trainables.data.retrieval import dev_metrics, is_retrieval
from trainables.data.tokens import PROMPTS

S = TypeVar("S")

SAMPLERS = ("auto", "grid", "random", "tpe", "gp", "qmc")
PRUNERS = (
    "none", "median", "percentile", "successive_halving", "asha", "hyperband", "patient", "threshold", "wilcoxon",
)  # fmt: skip
ENDS = ("trials", "time", "device_hours", "budget", "examples")  # of a search; any of them will do
LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # a code of BCP 47: en, zh, pt-BR; mul = several
ONE_EACH = "for several write a space each (with `extends`), and compare them with `analysis league`"
ELSEWHERE = {
    "seed": "not searched: `search.repeats` trains each point on several seeds, `search confirm` on fresh ones",
    **dict.fromkeys(("encoder", "model", "train", "data", "corpus", "method"), f"not searched: {ONE_EACH}"),
}
OF_SCRIPTS = {"train", "dev", "language"}  # keys of data that are handed to a script; all may be missing
NULLABLE = {"parser", "columns", "evaluations", "prompts", "mine"}  # keys of data that may be null
TEXTS: Schema = {"type": "array", "items": TEXT}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


optional_int = partial(hyperparameter, None, kind="int", optional=True)
optional_float = partial(hyperparameter, None, kind="float", optional=True)


def shaped(default: Any, doc: str, **schema: Any) -> Any:
    """A field of a section that is no hyperparameter field, with its JSON schema."""
    return dataclasses.field(default=default, metadata={"schema": {**schema, "description": doc}})


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is trained on and what selects."""

    train: str = shaped("", "a named corpus or a file, or several; {file, columns} for columns of its own", anyOf=SETS)
    dev: tuple[str, ...] = shaped((), "named pair sets, files, or folders of retrieval sets, as in train", anyOf=SETS)
    language: str = shaped("en", "its code: en, zh, de", type="string", pattern=f"^{LANGUAGE.pattern}$")
    parser: str | None = shaped(None, "spaCy pipeline of a method that parses", type=["string", "null"])
    columns: Mapping[str, Any] | None = shaped(None, "our column name: the file's", type=["object", "null"])
    evaluations: Mapping[str, str | None] | None = shaped(
        None, "from outside: names, or name: folder of its data", anyOf=[TEXTS, {"type": ["object", "null"]}]
    )
    prompts: Mapping[str, str] | None = shaped(
        None,
        "text before every query (sentences, anchors, dev pairs) and every document (positives, negatives)",
        type=["object", "null"],
        properties={name: {"type": "string"} for name in PROMPTS},
        additionalProperties=False,
    )
    mine: Mapping[str, Any] | None = shaped(
        None, "hard negatives for pairs, found by the untouched encoder: count, range, margin, encoder",
        type=["object", "null"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mine:
    """Hard negatives for pairs (`data.mine`): the positives of other rows that are most similar to the anchor."""

    count: int = hyperparameter(4, "hard negatives per row", low=1, high=32)
    range: tuple[int, ...] = hyperparameter((0, 50), "of ranks, from 0, that they are taken from", kind="ints")
    margin: float | None = optional_float(
        "a negative's cosine is at most the positive's less this; null = any cosine", low=-2, high=2
    )
    encoder: str | None = hyperparameter(None, "name or folder; null = the space's", kind="str", optional=True)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What selects."""

    name: str = hyperparameter("", "<set>_dev (Spearman), <set>_ndcg10_dev (retrieval) or mean(a_dev,b_dev)")
    mode: str = hyperparameter("max", "whether larger or smaller values are better", choices=("max", "min"))
    holdout: float = hyperparameter(
        0.0, "share of every dev set's pairs that does not select, reported as <set>_held_dev", low=0, below=1
    )

    @property
    def sign(self) -> float:
        """What a value is multiplied by so that larger is better."""
        return 1.0 if self.mode == "max" else -1.0


@dataclass(frozen=True, kw_only=True)
class Search:
    """How many trials, proposed how, ended when."""

    sampler: str = hyperparameter(
        "auto",
        "what proposes points; auto = gp (a Gaussian process); grid = the exact product (under a pruner, shuffled)",
        choices=SAMPLERS,
    )
    trials: int | None = optional_int("points at most; a grid has as many as its product", low=1)
    seed: int = hyperparameter(0, "of the sampler; trials use seed, seed + 1, ... for repeats", low=0, high=2**31 - 1)
    repeats: int = hyperparameter(
        1, "seeds per point at most, the study sees their mean; further ones go to the best points", low=1, high=1000
    )
    time: float | None = optional_float("wall-clock seconds (8h, 90m, 30s)", above=0)
    device_hours: float | None = optional_float("hours summed over trials and GPUs", above=0)
    budget: float | None = optional_float(
        "in full-length trials: all trials' training examples over those of the longest that the space allows",
        above=0,
    )
    examples: int | None = optional_int("training examples of all trials together", low=1)
    patience: float | None = optional_float(
        "stop after training as long as this many full-length trials without improvement", above=0
    )
    baseline: str = hyperparameter("paper", "run the published setting first", choices=("paper", "none"))
    start: tuple[str, ...] = hyperparameter(
        (), "studies whose best points are tried first; paper = its settings for other encoders", kind="words"
    )
    max_failed_share: float = hyperparameter(0.5, "a study with more failing trials ends", low=0, high=1)
    max_retries: int = hyperparameter(2, "restarts of a trial whose process crashed", low=0, high=100)
    keep_best: int = hyperparameter(3, "trials whose checkpoints stay on disk", low=0)
    concurrent: int | None = optional_int("trials at the same time, null = as the resources allow", low=1)


@dataclass(frozen=True, kw_only=True)
class Pruner:
    """What stops trials early. Resource = training examples seen."""

    kind: str = hyperparameter("none", "Optuna's pruner, or asha: pause at rungs and promote", choices=PRUNERS)
    states_gb: float = hyperparameter(10.0, "of asha: disk for the states of paused trials; others start again", low=0)
    reduction: int = hyperparameter(
        3, "of successive halving, asha and hyperband: 1 in this many goes on", low=2, high=100
    )
    warmup: int | None = optional_int(
        "no pruning before this many examples; null = auto, the schedule's, none for asha", low=0
    )
    min_rung: int | None = optional_int("examples of the first rung; null = after a fifteenth of a trial", low=1)
    percentile: float = hyperparameter(
        25.0, "of the percentile pruner: this share of the best goes on", above=0, below=100
    )
    patience: int = hyperparameter(3, "of the patient pruner: evaluations without improvement", low=1)
    lower: float | None = optional_float("of the threshold pruner: a value below ends the trial")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one trial gets."""

    gpus: Any = optional_float(  # noqa: RUF009  # float, None or "auto"
        "GPUs of each worker; a fraction lets trials share one; null = 1 where there are any; auto = as many trials "
        "share one as the first trial shows to fit",
        low=0, word=AUTO,
    )  # fmt: skip
    cpus: Any = hyperparameter(  # noqa: RUF009  # float or "auto"
        1.0,
        "CPU cores of each worker; auto = as the first trial shows to be fastest, 1 beside a GPU",
        above=0,
        word=AUTO,
    )
    workers: int = hyperparameter(1, "data-parallel workers of a trial", low=1, high=4096)

    def numbers(self) -> Resources:
        """What holds before anything is measured: auto as if nothing were written."""
        fields: dict[str, Any] = {"gpus": None, "cpus": 1.0}
        return dataclasses.replace(self, **{k: v for k, v in fields.items() if getattr(self, k) == AUTO})


def settings(
    cls: type[S], node: Node | None, problems: Problems, readers: Mapping[str, Callable[[Any], Any]] | None = None
) -> S:
    """A section of hyperparameter fields. `readers` turn a written value (`8h`) into the field's (seconds) first.

    Mistaken values are reported and replaced by their defaults, so that checking goes on.
    """
    known = hyperparameters(cls)
    good = {}
    for name, item in entries(node, tuple(known), problems).items():
        try:
            value = (readers or {}).get(name, lambda plain: plain)(item.plain())
        except ValueError as error:
            problems.add(item.where, str(error))
            continue
        if message := mistake(known[name], value):
            problems.add(item.where, message)
        else:
            good[name] = known[name].coerce(value)
    return cls(**good)


def mistake(field: Hyperparameter, value: Any) -> str | None:
    """What is wrong with a value, with a suggestion when it is close to an allowed word."""
    message = field.problem(value)
    return message + close_to(value, field.choices or ()) if message else None


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


def read_data(root: Node, method: Declaration | None, problems: Problems, run_code: bool) -> Data | None:
    """The data section of a document, or None when something in it is wrong. run_code: see `load_space`."""
    node, before = root.get("data"), len(problems.found)
    scripted = method is not None and method.scripted
    if node is None and not scripted:
        problems.add(root.place("data"), "missing; expected a mapping with train and dev")
    given = entries(node, tuple(f.name for f in dataclasses.fields(Data)), problems)
    if scripted:
        for name in given.keys() - OF_SCRIPTS:
            problems.add(given.pop(name).where, "has no effect for a script, which reads its data itself")
    elif node is not None and isinstance(node.value, dict):
        for name in {"train", "dev"} - given.keys():
            problems.add(root.place("data", name), "missing")
    given = {name: item for name, item in given.items() if item.value is not None or name not in NULLABLE}
    values: dict[str, Any] = {n: text(given[n], problems) for n in ("parser", "language") if n in given}
    if (language := values.get("language")) is not None:
        known = method.languages if method is not None else None
        if not LANGUAGE.fullmatch(language):
            problems.add(given["language"].where, f"expected a code such as en, zh or de, got {language!r}")
        elif method is not None and known is not None and language not in known:
            message = f"method {method.name} has rules for {', '.join(known)} only, got {language!r}"
            problems.add(given["language"].where, message)
    if "train" in given and isinstance(given["train"].value, dict) and given["train"].get("file") is None:
        problems.add(given.pop("train").where, f"expected text, got a mapping; {ONE_EACH}")
    if "train" in given:
        values["train"] = train_sets(given["train"], problems)
    if "dev" in given:
        values["dev"] = dev_sets(given["dev"], problems)
    if values.get("parser") and method is not None and not method.parser:
        problems.add(given["parser"].where, f"method {method.name} does not parse")
    values["columns"] = own_columns(given, problems)
    if "evaluations" in given:
        values["evaluations"] = _evaluations(given["evaluations"], problems, run_code)
    if "prompts" in given:
        prompts = entries(given["prompts"], PROMPTS, problems)
        for item in (item for item in prompts.values() if not isinstance(item.value, str)):
            problems.add(item.where, f"expected text, got {item.kind()}")
        if method is not None and not method.prompts:
            problems.add(given["prompts"].where, f"method {method.name} does not put prompts before its sentences")
        values["prompts"] = {name: item.plain() for name, item in prompts.items()} or None
    if "mine" in given:
        values["mine"] = _mine(given["mine"], method, problems)
    return Data(**values) if len(problems.found) == before else None


def _mine(node: Node, method: Declaration | None, problems: Problems) -> dict[str, Any]:
    if method is not None and method.columns not in ("pairs", "triplets"):
        problems.add(node.where, f"method {method.name} trains on {method.columns}, which have no hard negatives")
    found = settings(Mine, node, problems)
    if len(found.range) != 2 or not 0 <= found.range[0] <= found.range[1] - found.count:
        message = f"expected two ranks from 0 with {found.count} (count) between them, got {list(found.range)}"
        problems.add(node.place("range"), message)
    return dataclasses.asdict(found)


def _evaluations(node: Node, problems: Problems, run_code: bool) -> dict[str, str | None] | None:
    """`data.evaluations`: a list of names, or a mapping of name to the folder of its data (null = none)."""
    given = node.plain()
    if isinstance(given, list):
        given = dict.fromkeys(given) if all(isinstance(name, str) for name in given) else None
    if not isinstance(given, dict) or not all(f is None or (isinstance(f, str) and f.strip()) for f in given.values()):
        problems.add(node.where, "expected names, or a mapping of name to a folder or null")
        return None
    for name in given if run_code else ():
        try:
            evaluation_named(name)
        except PluginError as error:
            problems.add(node.where, str(error))
    return given or None


def evaluation_metrics(names: Iterable[str]) -> list[str]:
    """The dev metrics that these evaluations give."""
    return [metric + DEV_SUFFIX for name in names for metric in evaluation_named(name).metrics]


def read_metric(
    root: Node, data: Data | None, method: Declaration | None, problems: Problems, run_code: bool
) -> Metric | None:
    """The metric section; its name must be made of the listed dev sets, or of what a script is to report. Without the
    section the mean of the main metrics of all dev sets selects.

    Args: run_code: see `load_space`.
    """
    node, before = root.get("metric"), len(problems.found)
    if node is None and data is not None and data.dev:
        main = ",".join(dev_metrics(dev_set)[0] for dev_set in data.dev)
        return Metric(name=f"mean({main})" if len(data.dev) > 1 else main)
    if node is None:
        problems.add(root.place("metric"), "missing; expected a mapping with name, such as stsb_dev")
    metric = settings(Metric, node, problems, {"holdout": lambda share: 0.0 if share is None else share})
    if node is not None and isinstance(node.value, dict) and "name" not in node.value:
        problems.add(root.place("metric", "name"), "missing")
    where, held = root.place("metric", "name"), root.place("metric", "holdout")
    names = [set_name(dev_set) for dev_set in data.dev] if data else []
    for name in names if metric.holdout else ():
        if name + HELD in names:
            problems.add(held, f"the held-out part of {name} would be called as another set is")
    scripted = method is not None and method.scripted
    if len(problems.found) > before or not (scripted or data):
        return None
    try:
        parts = metric_parts(metric.name)
    except ValueError as error:
        problems.add(where, str(error).removeprefix("metric: "))
        return None
    if scripted and metric.holdout:
        problems.add(held, "has no effect for a script, which measures by itself")
    for part in dict.fromkeys(parts):
        twice = parts.count(part) > 1
        if scripted or data is None:
            if twice or not re.fullmatch(rf"[A-Za-z0-9_.-]+{DEV_SUFFIX}", part):
                expected = f"names of letters, digits, '_', '-' that end with {DEV_SUFFIX}, each once"
                problems.add(where, f"expected {expected}, got {part!r}")
            continue
        name, _ = at_width(part)
        legal = [m for dev_set in data.dev for m in dev_metrics(dev_set)]
        outside = evaluation_metrics(data.evaluations or ()) if run_code else [part]
        if name not in legal and part not in outside:
            allowed = f"{', '.join(legal + outside)} and mean(...) of them"
            problems.add(where, f"{part!r} is of no set in data.dev; allowed: {allowed}")
        elif twice:
            problems.add(where, f"{part!r} is given twice")
        elif metric.holdout and name not in [dev_metrics(d)[0] for d in data.dev if not is_retrieval(d)]:
            problems.add(held, f"{part!r} has no pairs that could be held out")
    name = normal_metric(metric.name)
    return dataclasses.replace(metric, name=name) if len(problems.found) == before else None


def check_settings(search: Search, pruner: Pruner, resources: Resources, root: Node, problems: Problems) -> None:
    """What these settings need of each other. `root`: the whole document."""
    given = root.entries("search")
    ends = [given[name] for name in ENDS if name in given]
    unknown = given.keys() - {field.name for field in dataclasses.fields(Search)}  # perhaps the end, misspelled
    if search.sampler != "grid" and not unknown and all(end.value is None for end in ends):
        taken = next((end.where for end in ends if end.where.override), root.place("search"))
        message = "no end: give trials, time, device_hours, budget or examples"
        problems.add(taken.named(root.where.to("search").key), message)
    if search.budget is not None and search.examples is not None:
        problems.add(root.place("search", "examples"), "search.budget is given too; give one of them")
    if pruner.kind == "threshold" and pruner.lower is None:
        where = root.place("pruner", "kind").named(root.where.to("pruner", "lower").key)
        problems.add(where, "missing; the threshold pruner needs it")
    if pruner.kind == "wilcoxon" and search.repeats < 2:
        message = "wilcoxon compares repeats: search.repeats must be at least 2, got 1"
        problems.add(root.place("pruner", "kind"), message)
    gpus, workers = resources.numbers().gpus or 0.0, resources.workers
    where = root.place("resources", "gpus")
    if gpus > 1:
        several = f"; write gpus: 1, workers: {math.ceil(gpus)}" if workers == 1 else ""
        problems.add(where, f"a worker trains on one GPU, got {gpus:g}{several}")
    elif 0 < gpus < 1 and workers > 1:  # NCCL takes no two workers on the same GPU
        problems.add(where, f"{workers} workers need a whole GPU each (NCCL), got {gpus:g}")
