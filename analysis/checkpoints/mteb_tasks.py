"""MTEB's tasks: found by name or in a file, loaded, and what their data have in common with a study's.

MTEB is an extra; nothing of it is imported before a task is asked for.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.errors import AnalysisError, InputError, unknown
from trainables.contract.errors import DataError, first_line
from trainables.data.catalogue import HUB, HUB_SECONDS, hub_name, is_hub
from trainables.data.retrieval import NANO, is_retrieval, load_retrieval
from trainables.data.sets import load_corpus, load_pairs

INSTALL = "pip install 'contrastive-search[mteb]'"
NOT_TEXTS = ("id", "_id", "lang", "label", "labels", "label_text", "query-id", "corpus-id", "corpus-ids")


def find_tasks(names: Sequence[str]) -> list[Any]:
    """MTEB's tasks by their names, those of a benchmark by its name, or all that a Python file defines.

    Raises: InputError if MTEB is not installed, for an unknown name, or a file without tasks.
    """
    try:
        with quiet():
            import mteb
            from mteb.benchmarks.get_benchmark import get_benchmark
            from mteb.get_tasks import TASK_LIST
    except ImportError as missing:
        raise InputError(f"--mteb: {first_line(missing)}; install it: {INSTALL}") from None
    tasks: list[Any] = []
    known = [task.metadata.name for task in TASK_LIST]
    for name in names:
        if name.endswith(".py"):
            tasks += _of_file(Path(name))
        elif name in known:
            tasks.append(mteb.get_task(name))
        else:
            try:
                tasks += get_benchmark(name).tasks
            except KeyError:
                raise unknown("MTEB task", name, known) from None
    wrong = [task.metadata.name for task in tasks if list(task.metadata.modalities) != ["text"]]
    if wrong:
        raise InputError(f"--mteb: {wrong[0]}: expected a task on text, it has more than that")
    return list({task.metadata.name: task for task in tasks}.values())


def _of_file(path: Path) -> list[Any]:
    from mteb.abstasks.abstask import AbsTask

    if not path.is_file():
        raise InputError(f"--mteb: {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"mteb_tasks_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        mine = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == spec.name]
        tasks = [c() for c in mine if issubclass(c, AbsTask) and not inspect.isabstract(c)]
    except Exception as error:  # a program of the user's: anything
        raise InputError(f"--mteb: {path}: {type(error).__name__}: {first_line(error)}") from error
    if not tasks:
        raise InputError(f"--mteb: {path}: expected classes of MTEB's tasks (AbsTaskSTS and its like), found none")
    return tasks


def load_tasks(tasks: Sequence[Any]) -> None:
    """Read the tasks' data, from the hub's cache where the hub does not answer.

    Raises: AnalysisError in one line for data that cannot be had.
    """
    with quiet():
        for task in (part for whole in tasks for part in parts(whole)):
            where = task.metadata.dataset["path"]
            of_hub = type(task).__module__.startswith("mteb.")
            why = _unanswered(where, task.metadata.dataset.get("revision")) if of_hub else ""
            try:
                with _offline() if why else contextlib.nullcontext():
                    task.load_data()
            except Exception as error:  # datasets', the hub's and the system's errors have no common class
                reason = why or f"{type(error).__name__}: {first_line(error)}"
                place = f"{where} of the hub" if of_hub else str(where)
                raise AnalysisError(f"{task.metadata.name}: its data, {place}: {reason[:300]}") from error


def parts(task: Any) -> list[Any]:
    """A task alone, or those that an aggregate is made of."""
    return list(task.metadata.tasks) if task.is_aggregate else [task]


def _unanswered(repository: str, revision: str | None) -> str:
    """Why the hub does not say that it has this, "" if it does: one question with a limit, loading asks for long."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(repository, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:  # as in `load_tasks`
        return f"{first_line(error)}; check the network"
    return ""


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """From the cache alone."""
    import datasets
    import huggingface_hub.constants as constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' warnings and bars: what matters is an error."""
    import datasets

    names = ("mteb", "datasets", "huggingface_hub")
    before = [logging.getLogger(name).level for name in names]
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in zip(names, before, strict=True):
            logging.getLogger(name).setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


def known_data(task: Any, data: Mapping[str, Any]) -> list[str]:
    """What a task's data have in common with a study's train and dev sets, a line each: by name, and by its texts.

    Args: task: loaded. data: the study's, as a trial's specification has them.
    """
    name = task.metadata.name
    repositories = {_key(part.metadata.dataset["path"]): part.metadata.dataset["path"] for part in parts(task)}
    used = [("train", part.strip()) for part in str(data["train"]).split("+")] + [("dev", d) for d in data["dev"]]
    language = str(data.get("language", "en"))
    lines = [
        f"{name}: its data set {repositories[_key(repository)]} is {given} of data.{role}"
        for role, given in used
        if (repository := _repository(given, language)) and _key(repository) in repositories
    ]
    theirs = {_plain(text) for part in parts(task) for text in task_texts(part)} - {""}
    for role, given in used:
        seen = set[str]()
        with contextlib.suppress(DataError):  # not on this machine any more: nothing can be compared
            seen = theirs.intersection(map(_plain, _texts(role, given, language, data.get("columns"))))
        if seen:
            share = 100 * len(seen) / len(theirs)
            lines.append(
                f"{name}: {len(seen):,} of its {len(theirs):,} texts ({share:.1f} %) also stand in {given} of "
                f"data.{role}; its score is not one on unseen data"
            )
    return lines


def task_texts(task: Any) -> Iterator[str]:
    """All texts that a loaded task scores: sentences, queries, documents; not what it trains a classifier on."""
    splits = set(task.eval_splits)
    for name, subset in (task.dataset or {}).items():
        if name in splits:
            yield from _strings(subset)
        elif isinstance(subset, Mapping):
            for split, rows in subset.items():
                if split in splits:
                    yield from _strings(rows)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):  # of a retrieval task: corpus, queries; judgements are identifiers
        for key, inner in value.items():
            if key not in ("relevant_docs", "top_ranked"):
                yield from _strings(inner)
    elif hasattr(value, "column_names"):
        for column in value.column_names:
            if column not in NOT_TEXTS:
                yield from _strings(list(value[column]))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _texts(role: str, name: str, language: str, columns: Mapping[str, str] | None) -> Iterable[str]:
    if role == "train":
        for column in load_corpus(name, language, "sentences", columns).columns.values():
            yield from column
    elif is_retrieval(name):
        found = load_retrieval(name)
        yield from found.queries
        yield from found.documents
    else:
        pairs = load_pairs(name, "dev", language, columns)
        yield from pairs.first
        yield from pairs.second


def _repository(name: str, language: str) -> str | None:
    if name in NANO or is_hub(name):
        return hub_name(f"hub:{NANO[name]}" if name in NANO else name).repo
    hub = HUB.get((language, name))
    return hub.repo if hub else None


def _key(repository: str) -> str:
    """Repositories move between owners (C-MTEB, mteb) under one name."""
    return repository.rsplit("/", 1)[-1].casefold()


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
