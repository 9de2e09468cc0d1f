"""The ready spaces are installed inside `search`: a top-level `spaces` is another distribution's on PyPI."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["search*", "trainables*", "analysis*"]),
        "search.ready_spaces",
        "search.ready_spaces.league",
        "search.ready_spaces.papers",
    ],
    package_dir={"search.ready_spaces": "spaces"},
)
