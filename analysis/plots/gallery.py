"""All figures of a study that its data allow, in the order of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from matplotlib.figure import Figure

from analysis.plots import model_figures, param_figures, search_figures
from analysis.plots.model_figures import Geometry, Widths
from analysis.plots.param_figures import Contour, Params
from analysis.plots.search_figures import Curves, History, Pareto, label_of
from analysis.plots.style import GREY, style
from analysis.statistics.importance import Importance
from analysis.statistics.picked import EvaluatedPoints
from analysis.tables.axes import study_axes
from analysis.tables.study import Study

NAMES = ("history", "curves", "parallel", "slices", "contour", "importance", "pareto", "scatter", "widths", "geometry")
Drawn = tuple[str, Figure] | None  # a caption, a sentence on what one sees, and the figure


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
    of = _Figures(study, measured)
    pictures = [
        Picture(name, *drawn) for name in NAMES if (not names or name in names) and (drawn := getattr(of, name)())
    ]
    with style():
        for picture in pictures:
            picture.figure.suptitle(study.name, x=0.01, ha="left", fontsize=8, color=GREY)
    return pictures


@dataclass
class _Figures:
    """The figures by their NAMES, None where the study has no data for one."""

    study: Study
    measured: Importance | None

    @cached_property
    def label(self) -> str:
        return label_of(self.study)

    @cached_property
    def params(self) -> Params:
        return Params.of(self.study, study_axes(self.study))

    def history(self) -> Drawn:
        data = History.of(self.study)
        caption = f"Value of each trial in the order of the search, and the best so far.{_error(data)}"
        return (caption, search_figures.history(data, self.label)) if len(data.values) else None

    def curves(self) -> Drawn:
        data = Curves.of(self.study)
        rungs = " Upright dotted lines: where trials were pruned." if data.rungs.size else ""
        caption = f"Value against training examples.{rungs} In colour the best three and {data.baseline_name}."
        return (caption, search_figures.curves(data, self.label)) if data.curves else None

    def parallel(self) -> Drawn:
        caption = "Completed trials across all searched parameters; the darker a line, the better its value."
        enough = len(self.params.axes) > 1 and (~self.params.pruned).sum() > 1
        return (caption, param_figures.parallel(self.params, self.label)) if enough else None

    def slices(self) -> Drawn:
        caption = f"Value against each searched parameter alone.{_error(self.params)}"
        some = self.params.axes and len(self.params.values)
        return (caption, param_figures.slices(self.params, self.label)) if some else None

    def contour(self) -> Drawn:
        """Of the two most important parameters that always exist; of the first two where importance is unknown."""
        ranked = [axis.name for axis in self.params.axes if not axis.when]
        if self.measured:
            ranked = [p.name for p in self.measured.params if not p.conditional]
        if len(ranked) < 2 or (data := Contour.of(self.params, ranked[0], ranked[1])) is None:
            return None
        what = f"Completed trials over {ranked[0]} and {ranked[1]} on a random forest's fit"
        return f"{what}; the darker the better, blank where no trial is near.", param_figures.contour(data, self.label)

    def importance(self) -> Drawn:
        if self.measured is None or not self.measured.params:
            return None
        return f"What moved the score. {self.measured.note}", param_figures.importance(self.measured)

    def pareto(self) -> Drawn:
        data = Pareto.of(self.study)
        caption = f"Quality against training time; on the front nothing else is both better and faster.{_error(data)}"
        return (caption, search_figures.pareto(data, self.label)) if len(data.values) > 1 else None

    def scatter(self) -> Drawn:
        """Of the best configuration's best trial whose similarities are stored, else of the best such trial at all."""
        points, sign = EvaluatedPoints.of(self.study.points, self.study.metric.sign), self.study.metric.sign
        if not points.completed.any():
            return None
        named = points.run_ids[points.best(points.nameable())]
        done = self.study.trials[(self.study.trials["stop"] == "completed") & self.study.trials["value"].notna()]
        ranked = done.assign(other=~done["run_id"].isin(named), order=-sign * done["value"])
        for row in ranked.sort_values(["other", "order"]).head(5).to_dict("records"):
            arrays, data = self.study.similarities(row["run_id"]) or {}, self.study.data
            if found := model_figures.scatters(arrays, data):
                caption = f"Cosine against gold score of every dev pair, trial {row['trial']}; Spearman x 100 above."
                if any(one.labels for one in found):
                    caption += " The colour is the pair's label."
                return caption, model_figures.scatter(found, f"trial {row['trial']}")
        return None

    def widths(self) -> Drawn:
        data = Widths.of(self.study)
        caption = "Score at each trial's best evaluation against the width that its vectors are cut to."
        return (caption, model_figures.widths(data)) if data else None

    def geometry(self) -> Drawn:
        data = Geometry.of(self.study)
        what = "Alignment and uniformity of each trial's best checkpoint on the dev sentences; the darker the better."
        return (what, model_figures.geometry(data, self.label)) if len(data.values) > 1 else None


def _error(data: History | Pareto | Params) -> str:
    return (
        " No error bars: no seed was repeated." if data.error is None else " Bars: one standard deviation over seeds."
    )
