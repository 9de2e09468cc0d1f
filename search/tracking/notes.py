"""The Markdown that MLflow shows on the pages of a study and of its trials."""

from __future__ import annotations

import shlex

from search.space import Space
from search.store.layout import StudyFolder, is_remote, storage_option
from search.store.ledger import Event, Ledger
from search.wording import best_trials, headline, show, trial_line

SHOWN = 3  # best trials in a study's note


def study_note(space: Space, folder: StudyFolder, ledger: Ledger | None = None) -> str:
    """What a study searches and how, where it stands, how to look further and how to run it again.

    Args: ledger: what happened so far; None before anything has.
    """
    search, pruner = space.search, space.pruner
    extent = [f"{n} {what}" for n, what in ((search.trials, "points"), (space.cardinality(), "in the grid")) if n]
    parts = [
        f"**{space.what}**" + (f", trained on `{space.data.train}`" if space.data.train else "") + ", "
        f"selected by `{space.metric.name}` ({space.metric.mode})."
    ]
    if ledger is not None and ledger.sessions:
        lines = [headline(space, ledger, ledger.sessions[-1][1])]
        lines += [trial_line(s, space) for s in best_trials(ledger, SHOWN) if s.state == "completed"]
        parts.append("**So far** (values x 100)\n\n```\n" + "\n".join(lines) + "\n```")
    rows = [f"| `{name}` | `{param.written()}` |" for name, param in space.params.items()]
    parts.append("| searched | range |\n|---|---|\n" + "\n".join(rows))
    parts.append(
        f"Sampler `{search.sampler}`, pruner `{pruner.kind}`, seed {search.seed}, {search.repeats} per point"
        + (f", {', '.join(extent)}." if extent else ".")
    )
    storage = storage_option(folder.storage)
    commands = [] if is_remote(folder.storage) else [f"search run {shlex.quote(str(folder.space))}"]
    commands += [f"search resume {folder.study}{storage}", f"analysis best --study {folder.study}"]
    parts.append("**Again, on, and further**\n\n```\n" + "\n".join(commands) + "\n```")
    return "\n\n".join(parts)


def trial_note(start: Event, space: Space, folder: StudyFolder) -> str:
    """What a trial tries (its `start` event) and where its files are."""
    point = "\n".join(f"| `{name}` | {show(value)} |" for name, value in start["point"].items())
    kind = {"search": "Trial of the search", "confirm": "Confirming trial on a fresh seed"}[start["stage"]]
    of = f", the {start['baseline']} baseline" if start["baseline"] else ""
    of += f", from {origin}" if (origin := start.get("origin")) else ""
    return (
        f"{kind}{of}: point {start['number']}, seed {start['seed']}, `{space.what}`.\n\n"
        f"| searched | here |\n|---|---|\n{point}\n\nFiles: `{folder.trial(start['id'])}`"
    )
