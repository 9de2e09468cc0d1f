"""Search spaces: YAML files in, checked and typed spaces out. No torch, ray, optuna or mlflow.

`load_space(path, overrides)` gives a `Space` or raises `SpaceError` with every mistake, also against its data with
`find_data` (the default of `search.load_space`); `smoke(space)` scales it down; `paper_point(space)` is the published
setting in it; `check_spaces(paths)` is what `search check` prints.
"""

from search.space.load import Checked, check_spaces, load_space, smoke, space_from
from search.space.nodes import Problem, SpaceError
from search.space.params import Param
from search.space.sections import Data, Metric, Pruner, Resources, Search
from search.space.space import PAPER, Space, paper_notes, paper_point

__all__ = [
    "PAPER", "Checked", "Data", "Metric", "Param", "Problem", "Pruner", "Resources", "Search", "Space", "SpaceError",
    "check_spaces", "load_space", "paper_notes", "paper_point", "smoke", "space_from",
]  # fmt: skip
