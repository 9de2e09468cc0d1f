"""The real `search` command with trials by formula: `python fake_search.py run space.yaml --name x`."""

import sys

from fake_trial import FakeTrial

import trainables.on_ray.trainable as real

real.TrialJob = FakeTrial  # type: ignore[misc, assignment]

from search.cli.main import main  # noqa: E402

main(sys.argv[1:])
