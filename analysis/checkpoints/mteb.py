"""A trial's exported checkpoint on MTEB's tasks, by MTEB's own code, on record.

Tasks are found by name or in a file, loaded, and compared with the study's data. MTEB is an extra; nothing of it is
imported before a task is wanted.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pandas as pd
from transformers.utils.logging import disable_progress_bar

from analysis.checkpoints.choice import at_hub, selected_width, trial_path
from analysis.checkpoints.export import export
from analysis.checkpoints.openings import Opening, check_reason, record_opening
from analysis.checkpoints.overlap import shared_texts, used_sets
from analysis.checkpoints.trained import Trained, loaders, read_spec
from analysis.errors import AnalysisError, InputError, unknown
from analysis.tables.study import Study
from search import schema
from trainables.contract.errors import first_line
from trainables.contract.remote_code import runs_code
from trainables.data.catalogue import HUB_SECONDS

INSTALL = "pip install 'contrastive-search[mteb]'"
NOT_TEXTS = ("id", "_id", "lang", "label", "labels", "label_text", "query-id", "corpus-id", "corpus-ids")
MTEB_PREFIX = "mteb_"
FOLDER = "mteb"  # beside the study's trials, and in each tested trial's artifacts
BATCH = 64  # texts at once, in MTEB's hands


@dataclass(frozen=True)
class MtebScore:
    """A trial's main score on a task, as MTEB gives it. metric: its name in MLflow."""

    trial: str
    task: str
    measure: str
    value: float
    metric: str


@dataclass(frozen=True)
class MtebOpened:
    """What an opening gave. warnings: tasks on data of the study; earlier: previous openings; folder: result files."""

    scores: tuple[MtebScore, ...]
    warnings: tuple[str, ...]
    earlier: tuple[str, ...]
    folder: str


def open_mteb(
    study: Study, trials: pd.DataFrame, reason: str, names: Sequence[str], now: datetime | None = None
) -> MtebOpened:
    """Score trials' best checkpoints, exported, on tasks of MTEB; log the opening first, then each score as it comes.

    MTEB's result files go to `mteb/results/<space>__<study>-<trial>/<weights>/<task>.json` of the study's folder, and
    as `mteb/<space>__...` to the trial's artifacts.

    Args: trials: rows of `study.trials`. reason: why, one line. names: as `find_tasks`.
    Raises: InputError and AnalysisError, all before anything is opened: no reason, no MTEB, an unknown task, data or
        weights that are not there; AnalysisError for a task that fails.
    """
    check_reason(reason)
    tasks = find_tasks(names)
    folders = [trial_path(study, folder) for folder in trials["folder"]]
    networks = loaders(folders)
    load_tasks(tasks)
    warnings = [line for task in tasks for line in known_data(task, read_spec(folders[0]).data)]
    what = f"{', '.join(trials['trial'])} on MTEB's {', '.join(t.metadata.name for t in tasks)}"
    record = record_opening(study, what, reason, now)

    beside = f"{study.stored.tags.get(schema.FOLDER, '')}/{FOLDER}"
    scores: list[MtebScore] = []
    for trial, run_id, load in zip(trials["trial"], trials["run_id"], networks, strict=True):
        scores += _scored(load(), tasks, study, str(trial), str(run_id), record, beside)
    return MtebOpened(tuple(scores), tuple(warnings), record.earlier, beside)


def _scored(
    trained: Trained, tasks: Sequence[Any], study: Study, trial: str, run_id: str, record: Opening, beside: str
) -> list[MtebScore]:
    scores = []
    with TemporaryDirectory() as scratch:
        model = _model(trained, Path(scratch) / "model", study, trial)
        for task in tasks:
            result = _evaluated(model, task, Path(scratch) / "files")
            metric = MTEB_PREFIX + re.sub(r"[^\w.-]", "_", task.metadata.name) + schema.TEST_SUFFIX
            value = float(result.get_score())
            record.log(run_id, {metric: value})
            scores.append(MtebScore(trial, task.metadata.name, task.metadata.main_score, value, metric))
            filesystem, inner = fsspec.core.url_to_fs(beside)
            filesystem.makedirs(inner, exist_ok=True)
            filesystem.put(f"{scratch}/files/", f"{inner}/", recursive=True)
        record.log_files(run_id, Path(scratch) / "files" / "results", FOLDER)
    return scores


def _evaluated(model: Any, task: Any, folder: Path) -> Any:
    import mteb

    try:
        found = mteb.evaluate(
            model, task, cache=mteb.ResultCache(folder), overwrite_strategy="always", co2_tracker=False,
            encode_kwargs={"batch_size": BATCH, "show_progress_bar": False}, show_progress_bar=False,
        )  # fmt: skip
    except Exception as error:  # a task is a program: anything
        raise AnalysisError(f"{task.metadata.name}: {type(error).__name__}: {first_line(error)}") from error
    return found.task_results[0]


def _model(trained: Trained, folder: Path, study: Study, trial: str) -> Any:
    """What MTEB evaluates: the export as SentenceTransformer, or of a method with a network of its own its vectors."""
    from mteb.models import ModelMeta

    export(trained, folder, "", None if trained.method.export else selected_width(study))
    if (folder / "modules.json").exists():
        from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
        from sentence_transformers import SentenceTransformer

        model: Any = SentenceTransformerEncoderWrapper(
            SentenceTransformer(str(folder), trust_remote_code=runs_code(trained.spec.encoder))
        )
        meta = model.mteb_model_meta
    else:
        model, meta = _own_network(trained), ModelMeta.create_empty()
    space = str(study.space.get("name", study.name))
    weights = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(folder.rglob("*.safetensors")))).hexdigest()
    about: Mapping[str, Any] = {"name": f"{space}/{study.name}-{trial}", "revision": weights[:12]}
    model.mteb_model_meta = meta.model_copy(update=about)
    return model


def _own_network(trained: Trained) -> Any:
    from mteb.models.abs_encoder import AbsEncoder

    class Own(AbsEncoder):  # type: ignore[misc]  # MTEB is an extra, and untyped here
        """Vectors of a network that is no SentenceTransformer; similarity is the cosine, MTEB's default."""

        def __init__(self) -> None:
            """Nothing is loaded by name."""

        def encode(self, inputs: Any, **_: Any) -> np.ndarray:
            return np.concatenate([trained.embed(list(batch["text"])) for batch in inputs])

    return Own()


def find_tasks(names: Sequence[str]) -> list[Any]:
    """MTEB's tasks by their names, those of a benchmark by its name, or all that a Python file defines.

    Raises: InputError if MTEB is not installed, for an unknown name, or a file without tasks.
    """
    try:
        _quiet()
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
        raise InputError(f"--mteb: {wrong[0]}: expected a task on text only")
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
    """Why the hub does not confirm that it has this, "" if it does: one request, as loading retries for long."""
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


def _quiet() -> None:
    """From here on without the libraries' warnings and bars: what matters is an error."""
    import datasets

    datasets.disable_progress_bars()
    disable_progress_bar()
    for name in ("mteb", "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def known_data(task: Any, data: Mapping[str, Any]) -> list[str]:
    """What a task's data have in common with a study's train and dev sets, a line each: by name, and by its texts.

    Args: task: loaded. data: the study's, as a trial's specification has them.
    """
    name = task.metadata.name
    repositories = {_key(part.metadata.dataset["path"]): part.metadata.dataset["path"] for part in parts(task)}
    language = str(data.get("language", "en"))
    lines = [
        f"{name}: its data set {repositories[_key(place[0])]} is {given} of data.{role}"
        for role, given in used_sets(data)
        if (place := at_hub(given, language)) and _key(place[0]) in repositories
    ]
    return lines + shared_texts(name, (text for part in parts(task) for text in task_texts(part)), data)


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


def _key(repository: str) -> str:
    """Repositories move between owners (C-MTEB, mteb) under one name."""
    return repository.rsplit("/", 1)[-1].casefold()
