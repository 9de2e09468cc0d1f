"""Every benchmark can be imported and answers `--help`; nothing is measured."""

from __future__ import annotations

import importlib

import pytest
from click import Command
from click.testing import CliRunner

from benchmarks import calibration
from benchmarks.__main__ import NAMES, main
from benchmarks.curves import record


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_imports_and_answers_help(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("command", [calibration.main, record.main], ids=["calibration", "curves.record"])
def test_a_benchmark_with_a_command_line_answers_help(command: Command) -> None:
    assert CliRunner().invoke(command, ["--help"]).exit_code == 0
