"""What the README says is true: its space loads, its commands and files exist. `.ci/run` pastes its two lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from analysis.commands.main import main as analysis
from search.cli.main import main as search
from search.space import load_space
from trainables.contract.registry import SHIPPED

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        re.split(r"\s+#|\s+&&", line)[0].strip().removeprefix(".venv/bin/")
        for line in TEXT.splitlines()
        if re.match(r"    (\.venv/bin/)?(search|analysis) ", line)
    }
)


def test_the_space_in_the_readme_loads(tmp_path):
    (yaml,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml)
    assert load_space(path).search.trials == 60


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_parses(line):
    program, name, *arguments = shlex.split(line)
    group = {"search": search, "analysis": analysis}[program]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    command.make_context(name, arguments, resilient_parsing=False)


def test_there_are_commands():
    assert len(COMMANDS) > 10


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_every_named_file_and_link_is_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:spaces|docs|trainables|tests|analysis|search|benchmarks)/[\w./-]+)`", text))
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")}
    assert named | links
    missing = [name for name in named if not (ROOT / name).exists()]
    missing += [link for link in links if not ((ROOT / page).parent / link).exists()]
    assert missing == []


def test_every_method_has_a_row():
    for method in SHIPPED:
        assert f"| `{method}` |" in TEXT


def test_the_two_lines_are_where_ci_looks():
    lines = [line.strip() for line in TEXT.splitlines() if re.match(r"    (python3 -m venv|\.venv/bin/pip)", line)]
    assert len(lines) == 2
    assert lines[0].endswith("search run spaces/quickstart.yaml")
    assert lines[1].endswith("pytest -n 2")


def test_groups_are_click_groups():
    assert isinstance(search, click.Group)
    assert isinstance(analysis, click.Group)
