"""The documentation is true as far as a program can tell: commands parse, spaces load, Python's imports resolve, files
and links are there, the README has every method and the two lines that `.ci/run` pastes, and the site builds without a
warning and loads nothing from other hosts."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from browser import CHROMEDRIVER, CHROMIUM, browser
from click.testing import CliRunner
from documented import BLOCKS, COMMANDS, PAGES, ROOT, SPACES, Block, at_hand
from jsonschema import Draft202012Validator

from analysis.commands.main import main as analysis
from search.cli.main import main as search
from search.space import load_space
from search.space.json_schema import json_schema
from search.space.nodes import Problems, read_file
from trainables.contract import formats
from trainables.contract.registry import SHIPPED

OURS = ("analysis", "benchmarks", "search", "trainables")
NO_OPTIONS = ("-h", "--help", "--version")
PROGRAMS = {"search": search, "analysis": analysis}


def parse(text: str) -> str:
    """What click does with a command before it is run; the name of the command that it found.

    Raises: click.UsageError for a command, option or value that there is not.
    """
    program, *arguments = shlex.split(text)
    command: click.Command = PROGRAMS[program]
    context = click.Context(command, info_name=program)
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        if name in NO_OPTIONS:
            return program
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no command {name!r}")
        command = found
    if not set(arguments) & set(NO_OPTIONS):
        command.make_context(command.name, arguments, parent=context)
    return str(command.name)


@pytest.mark.parametrize("text", [text for text, _ in COMMANDS], ids=[f"{where} {text}" for text, where in COMMANDS])
def test_every_command_is_one(text: str) -> None:
    assert parse(text) in shlex.split(text)


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.commands[name]
            yield from commands(below, click.Context(below, parent=context, info_name=name))


HELPED = [found for name, one in PROGRAMS.items() for found in commands(one, click.Context(one, info_name=name))]


@pytest.mark.parametrize(("command", "context"), HELPED, ids=[context.command_path for _, context in HELPED])
def test_help_is_one_imperative_line_and_examples_that_parse(command: click.Command, context: click.Context) -> None:
    first, _, rest = (command.help or "").partition("\n")
    assert re.fullmatch(r"[A-Z][a-z]+ .{10,65}\.", first)
    assert not re.match(r"(The|All|What|Your|A|An|On|How|Which) ", first)
    assert rest.strip() == "" or rest.startswith("\n")
    texts = command.get_help(context)
    if isinstance(command, click.Group):
        assert "..." not in texts.replace("[ARGS]...", "")  # no command's line is cut
    if context.command_path == "search cluster":
        return
    _, _, shown = texts.partition("Examples:\n")
    for line in filter(None, map(str.strip, shown.splitlines())):
        parse(re.split(r" [>&]", line)[0])
        assert line.startswith(context.command_path)
    assert shown.strip()


def test_commands_are_found_and_wrong_ones_refused() -> None:
    assert len(COMMANDS) > 60
    assert {Path(where.split(":")[0]).name for _, where in COMMANDS} >= {
        "README.md",
        "cluster.md",
        "tutorial.md",
        "best-after.txt",
    }
    for wrong in ("search rum x", "search run", "search run x --sett a=b", "analysis best --formt json"):
        with pytest.raises(click.UsageError):
            parse(wrong)


@pytest.mark.parametrize("block", SPACES, ids=str)
def test_every_space_loads(block: Block, tmp_path: Path) -> None:
    """A whole space loads; a part of one has keys that a space has, with values they take."""
    path = tmp_path / "space.yaml"
    path.write_text(block.text, encoding="utf-8")
    node = read_file(str(path), Problems())
    assert node is not None
    given = node.plain()
    assert [fault.message for fault in Draft202012Validator(json_schema()).iter_errors(given)] == []
    if {"method", "data", "params"} <= set(given):
        (tmp_path / "train.py").write_text(
            "def train(config, report): ...\n"
        )  # of a space whose script is the reader's
        load_space(path)


def test_the_tutorial_has_the_file_that_it_runs() -> None:
    (shown,) = [block for block in SPACES if block.page.name == "tutorial.md"]
    assert shown.text == (ROOT / "spaces" / "quickstart.yaml").read_text(encoding="utf-8").rstrip("\n")


def test_the_path_of_a_trial_names_what_there_is() -> None:
    """Every module and function of "Follow one trial" exists."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| `([\w.]+)` \| (.+?) \|", text, re.M)
    for module, functions in rows:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assert set(re.findall(r"\w+", functions)) <= defined, module
    assert {"search.cli.cluster", "search.api"} <= {module for module, _ in rows}


def python_blocks() -> list[Block]:
    notebooks = []
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        notebooks.append(Block(path, 1, "python", "\n".join(code)))
    return [block for block in BLOCKS if block.kind == "python"] + notebooks


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_python_compiles_and_imports_what_there_is(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            assert [alias.name for alias in node.names if importlib.util.find_spec(alias.name) is None] == []
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] not in OURS:
            assert importlib.util.find_spec(node.module) is not None  # importing it may take seconds
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in PROGRAMS:
            assert hasattr(importlib.import_module(node.value.id), node.attr)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.kind in ("bash", "toml", "json")], ids=str)
def test_other_languages_parse(block: Block) -> None:
    if block.kind == "toml":
        tomllib.loads(block.text)
    elif block.kind == "json":
        json.loads(block.text)
    else:
        subprocess.run(["bash", "-n"], input=block.text, text=True, check=True, capture_output=True)


def test_every_block_has_a_known_language() -> None:
    known = {"bash", "console", "indented", "json", "python", "text", "toml", "yaml"}
    assert [f"{block}: {block.kind}" for block in BLOCKS if block.kind not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_file_and_link_is_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"`((?:spaces|docs|trainables|tests|analysis|search|benchmarks)/[\w./-]+)`", text))
    links = {link for link in re.findall(r"\]\(([^)#\s]+)(?:#[\w-]*)?\)", text) if not link.startswith("http")}
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    missing += [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_the_documents_have_every_method_and_the_lines_of_ci() -> None:
    methods = (ROOT / "docs" / "reference" / "spaces.md").read_text(encoding="utf-8")
    assert [method for method in SHIPPED if f"| `{method}` |" not in methods] == []
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert len((ROOT / "docs" / "tutorial-your-data.md").read_text(encoding="utf-8").split()) <= 900
    first, second = re.findall(r"^    ((?:python3 -m venv|\.venv/bin/pip).*?)\s*$", text, re.MULTILINE)
    assert first.endswith("search run spaces/quickstart.yaml")
    assert second.endswith("pytest -n 2")


def test_llms_txt_lists_every_page_for_users() -> None:
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    linked = re.findall(r"^- \[.+\]\((.+)\): .+$", text, re.MULTILINE)
    nav = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / ".mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(linked) == sorted(page for page in nav if not page.startswith("development/"))


def test_the_glossary_is_alphabetical_with_one_sentence_a_term() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert len(terms) > 40
    assert terms == sorted(terms, key=str.lower)
    for sentence in re.findall(r"^### .+\n\n(.+)$", text, re.MULTILINE):
        assert re.fullmatch(r"[^.]+(\.\w[^.]*)*\.", sentence), sentence


def test_the_reference_has_every_variable_and_format() -> None:
    text = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    source = "".join(p.read_text(encoding="utf-8") for name in OURS for p in (ROOT / name).rglob("*.py"))
    internal = {"SEARCH_CLUSTER"}  # set by the program for its own jobs
    assert set(re.findall(r'"(SEARCH_[A-Z_]+)"', source)) - internal == set(re.findall(r"SEARCH_[A-Z_]+", text))
    written = dict(re.findall(r"^\| `([\w./]+)`[^|]*\| (\d+) \|", text, re.MULTILINE))
    assert written == {
        "space.yaml": str(formats.SPACE), "tracking.jsonl": str(formats.JOURNAL), "../mlflow.db": str(formats.TRACKING),
    }  # fmt: skip
    assert text.count(f"| {formats.CHECKPOINT} |") >= 2


REFERENCE = [
    name
    for page in ("extending.md", "python.md")
    for name in re.findall(
        r"^::: ([\w.]+\.[A-Z]\w+)$", (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8"), re.MULTILINE
    )
]
FIELDS_ELSEWHERE = {"RunConfig", "EncoderConfig"}  # each field has its row in hyperparameters.md
UNLISTED = {"Space", "StudyStatus", "StudyResults"}  # their docstrings list the fields for users only


def described(name: str) -> Any:
    module, _, word = name.rpartition(".")
    return getattr(importlib.import_module(module), word)


CLASSES = [name for name in REFERENCE if dataclasses.is_dataclass(described(name))]


@pytest.mark.parametrize("name", [n for n in CLASSES if n.rpartition(".")[2] not in FIELDS_ELSEWHERE | UNLISTED])
def test_a_reference_page_describes_every_attribute(name: str) -> None:
    block = (described(name).__doc__ or "").partition("Attributes:\n")[2]
    names = ", ".join(re.findall(r"^ {8}(\w[\w, ]*):", block, re.MULTILINE)).split(", ")
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(described(name)))


@pytest.mark.costly
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is missing: pip install -e '.[docs]'")
def test_site_builds_without_warnings_and_loads_no_other_host(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / ".mkdocs.yml")]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "-d", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, env=quiet, check=False
    )
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES) - 2
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\s\">]+)", text)
        assert loaded == [], page
    assert (tmp_path / "llms.txt").exists()
    commands = (tmp_path / "reference" / "search.html").read_text(encoding="utf-8")
    assert "--retry-failed" in commands
    assert "Sentinel" not in commands  # click's name of "no default"
    assert "<code>()</code>" not in (tmp_path / "reference" / "hyperparameters.html").read_text(encoding="utf-8")
    assert "&lt;set&gt;_dev" in (tmp_path / "reference" / "hyperparameters.html").read_text(encoding="utf-8")
    assert "how it ended" in (tmp_path / "reference" / "python.html").read_text(encoding="utf-8")
    if CHROMEDRIVER and CHROMIUM:
        look_at(tmp_path)


def look_at(site: Path) -> None:
    """No page is wider than a telephone, nor a name of the tables in two pieces."""
    codes = "[...document.querySelectorAll('td:first-child code')]"
    broken = f"return {codes}.filter(e => e.getClientRects().length > 1).length"
    with browser() as window:
        window.width(400)
        for name in ("index", "reference/hyperparameters", "encoders"):
            window.open((site / f"{name}.html").as_uri())
            assert window.run("return document.documentElement.scrollWidth") <= 400, name
            assert window.run(broken) == 0, name
        assert [line for line in window.console() if line.startswith("SEVERE")] == []


@pytest.mark.parametrize(("text", "folder"), at_hand(), ids=[text for text, _ in at_hand()])
def test_commands_that_need_no_study_run(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = [str(path) for word in shlex.split(text)[1:] for path in (sorted(folder.glob(word)) or [word])]
    done = CliRunner().invoke(search, words)
    assert (done.exit_code, done.output != "") == (0, True), done.output
