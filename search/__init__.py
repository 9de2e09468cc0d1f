"""How a space becomes trials: typed spaces, the study, the runner, tracking and the `search` command."""
