"""All figures of a study that its data allow, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.errors import AnalysisError
from analysis.plots import collect_models, collect_params, collect_search, draw_models, draw_params, draw_search
from analysis.plots.style import GREY
from analysis.statistics.evaluated import Evaluated
from analysis.statistics.importance import Importance
from analysis.statistics.worth import worth, worth_line
from analysis.tables.axes import Axis, study_axes
from analysis.tables.study import Study, read_study


@dataclass(frozen=True)
class Picture:
    """name: of its files; caption: what one sees, a sentence."""

    name: str
    caption: str
    figure: Figure


def gallery(study: Study, measured: Importance | None, names: Sequence[str] = ()) -> list[Picture]:
    """The figures called `names` (all by default) that the study has data for.

    Args: measured: importance, None where it could not be measured.
    """
    axes = study_axes(study)
    label = collect_search.label_of(study)
    makers: dict[str, Callable[[], Picture | None]] = {
        "history": lambda: _history(study, label),
        "worth": lambda: _worth(study, label),
        "curves": lambda: _curves(study, label),
        "parallel": lambda: _parallel(study, axes, label),
        "slices": lambda: _slices(study, axes, label),
        "contour": lambda: _contour(study, axes, measured, label),
        "importance": lambda: _importance(measured),
        "pareto": lambda: _pareto(study, label),
        "scatter": lambda: _scatter(study),
        "geometry": lambda: _geometry(study, label),
    }
    made = [maker() for name, maker in makers.items() if not names or name in names]
    pictures = [picture for picture in made if picture is not None]
    for picture in pictures:
        picture.figure.suptitle(study.name, x=0.01, ha="left", fontsize=8, color=GREY)
    return pictures


NAMES = ("history", "worth", "curves", "parallel", "slices", "contour", "importance", "pareto", "scatter", "geometry")


def random_counterpart(study: Study) -> Study | None:
    """The newest other study of the same space whose sampler is random."""
    if study.stored.params.get("search.sampler") == "random":
        return None
    for run in study.store.studies():
        if run.experiment == study.stored.experiment and run.params.get("search.sampler") == "random":
            try:
                return read_study(study.store, run, study.metric)
            except AnalysisError:  # it has no trials yet, or never measured this
                continue
    return None


def _history(study: Study, label: str) -> Picture | None:
    data = collect_search.history(study)
    caption = f"Value of each trial in the order of the search, and the best so far.{_error(data)}"
    return Picture("history", caption, draw_search.history(data, label)) if len(data.numbers) else None


def _worth(study: Study, label: str) -> Picture | None:
    """With a random search of the same space beside it, where the store has one."""
    if (data := worth(study)) is None:
        return None
    other = random_counterpart(study)
    caption = f"What so many trials find on average, whatever their order. {worth_line(data, study.metric)}"
    drawn = draw_search.worth(data, worth(other) if other else None, study.metric.scale, label)
    return Picture("worth", caption, drawn)


def _curves(study: Study, label: str) -> Picture | None:
    data = collect_search.curves(study)
    rungs = " Upright dotted lines: where trials were pruned." if data.rungs.size else ""
    caption = f"Value against training examples.{rungs} In colour the best three and {data.baseline_name}."
    return Picture("curves", caption, draw_search.curves(data, label)) if data.curves else None


def _parallel(study: Study, axes: Sequence[Axis], label: str) -> Picture | None:
    data = collect_params.params(study, axes)
    caption = "Completed trials across all searched parameters; the darker a line, the better its value."
    enough = len(axes) > 1 and (~data.pruned).sum() > 1
    return Picture("parallel", caption, draw_params.parallel(data, label)) if enough else None


def _slices(study: Study, axes: Sequence[Axis], label: str) -> Picture | None:
    data = collect_params.params(study, axes)
    caption = f"Value against each searched parameter alone.{_error(data)}"
    return Picture("slices", caption, draw_params.slices(data, label)) if axes and len(data.values) else None


def _contour(study: Study, axes: Sequence[Axis], measured: Importance | None, label: str) -> Picture | None:
    """Of the two most important parameters that always exist; of the first two where importance is unknown."""
    ranked = (
        [p.name for p in measured.params if not p.conditional] if measured else [a.name for a in axes if not a.when]
    )
    if len(ranked) < 2:
        return None
    data = collect_params.contour(collect_params.params(study, axes), ranked[0], ranked[1])
    caption = (
        f"Completed trials over {ranked[0]} and {ranked[1]} on a random forest's fit; the darker the better, blank "
        "where no trial is near."
    )
    return Picture("contour", caption, draw_params.contour(data, label)) if data else None


def _importance(measured: Importance | None) -> Picture | None:
    if measured is None or not measured.params:
        return None
    caption = "What moved the score. " + measured.note
    return Picture("importance", caption, draw_params.importance(measured))


def _pareto(study: Study, label: str) -> Picture | None:
    data = collect_search.pareto(study)
    caption = f"Quality against training time; on the front nothing else is both better and faster.{_error(data)}"
    return Picture("pareto", caption, draw_search.pareto(data, label)) if len(data.values) > 1 else None


def _scatter(study: Study) -> Picture | None:
    """Of the best configuration's best trial whose similarities are stored, else of the best such trial at all."""
    points = Evaluated.of(study.points, study.metric.sign)
    if not points.completed.any():
        return None
    named = points.run_ids[points.best(points.nameable())]
    done = study.trials[(study.trials["stop"] == "completed") & study.trials["value"].notna()]
    ranked = done.assign(other=~done["run_id"].isin(named), order=-study.metric.sign * done["value"])
    for _, row in ranked.sort_values(["other", "order"]).head(5).iterrows():
        data = collect_models.scatters(study.similarities(row["run_id"]) or {}, study.space.get("data", {}))
        if data:
            caption = f"Cosine against gold score of every dev pair, trial {row['trial']}; Spearman x 100 above."
            if any(one.labels for one in data):
                caption += " The colour is the pair's label."
            return Picture("scatter", caption, draw_models.scatter(data, f"trial {row['trial']}"))
    return None


def _geometry(study: Study, label: str) -> Picture | None:
    data = collect_models.geometry(study)
    caption = "Alignment and uniformity of each trial's best checkpoint on the dev sentences; the darker the better."
    return Picture("geometry", caption, draw_models.geometry(data, label)) if len(data.values) > 1 else None


def _error(data: collect_search.History | collect_search.Pareto | collect_params.Params) -> str:
    return (
        " No error bars: no seed was repeated." if data.error is None else " Bars: one standard deviation over seeds."
    )
