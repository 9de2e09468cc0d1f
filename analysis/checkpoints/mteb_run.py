"""A trial's exported checkpoint on MTEB's tasks, by MTEB's own code, on record."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pandas as pd

from analysis.checkpoints.choice import trial_path
from analysis.checkpoints.export import export, without_bars
from analysis.checkpoints.mteb_tasks import find_tasks, known_data, load_tasks, quiet
from analysis.checkpoints.openings import check_reason, record_opening
from analysis.checkpoints.trained import Trained, load_trained
from analysis.errors import AnalysisError
from analysis.tables.study import Study
from search import schema
from trainables.contract.errors import first_line

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
    """What an opening gave. warnings: data that the study knows; earlier: previous openings; folder: result files."""

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

    Args: trials: rows of `study.trials`. reason: why, one line. names: as `mteb_tasks.find_tasks`.
    Raises: InputError and AnalysisError, all before anything is opened: no reason, no MTEB, an unknown task, data or
        weights that are not there; AnalysisError for a task that fails.
    """
    check_reason(reason)
    tasks = find_tasks(names)
    networks = [load_trained(trial_path(study, folder)) for folder in trials["folder"]]
    load_tasks(tasks)
    warnings = [line for task in tasks for line in known_data(task, networks[0].spec.data)]
    what = f"{', '.join(trials['trial'])} on MTEB's {', '.join(t.metadata.name for t in tasks)}"
    record = record_opening(study, what, reason, now)

    scores = []
    beside = f"{study.stored.tags.get(schema.FOLDER, '')}/{FOLDER}"
    for (_, row), trained in zip(trials.iterrows(), networks, strict=True):
        with TemporaryDirectory() as scratch:
            model = _model(trained, Path(scratch) / "model", study, str(row["trial"]))
            for task in tasks:
                result = _evaluated(model, task, Path(scratch) / "files")
                metric = MTEB_PREFIX + re.sub(r"[^\w.-]", "_", task.metadata.name) + schema.TEST_SUFFIX
                value = float(result.get_score())
                record.log(str(row["run_id"]), {metric: value})
                scores.append(MtebScore(str(row["trial"]), task.metadata.name, task.metadata.main_score, value, metric))
                filesystem, inner = fsspec.core.url_to_fs(beside)
                filesystem.makedirs(inner, exist_ok=True)
                filesystem.put(f"{scratch}/files/", f"{inner}/", recursive=True)
            record.log_files(str(row["run_id"]), Path(scratch) / "files" / "results", FOLDER)
    return MtebOpened(tuple(scores), tuple(warnings), record.earlier, beside)


def _evaluated(model: Any, task: Any, folder: Path) -> Any:
    import mteb

    try:
        with quiet():
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

    export(trained, folder, "")
    if (folder / "modules.json").exists():
        from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper
        from sentence_transformers import SentenceTransformer

        with quiet(), without_bars():
            model: Any = SentenceTransformerEncoderWrapper(SentenceTransformer(str(folder)))
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
