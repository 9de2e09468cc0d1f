"""The JSON schema for editors accepts every space that is right and marks what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from search.cli.main import main
from search.space.json_schema import json_schema
from search.space.nodes import Problems, read_file

ROOT = Path(__file__).parents[2]
SPACES = sorted([*(ROOT / "spaces").rglob("*.yaml"), *(ROOT / "docs" / "examples").glob("*.yaml")])


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_every_shipped_space_is_accepted(validator: Draft202012Validator, path: Path) -> None:
    node = read_file(str(path), Problems())
    assert node is not None
    assert [error.message for error in validator.iter_errors(node.plain())] == []
    assert len(SPACES) > 50


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"methd": "simcse"}, "methd"),
        ({"params": {"learning_rte": 1e-5}}, "learning_rte"),
        ({"params": {"temperature": {"flaot": [0.1, 0.2]}}}, "temperature"),
        ({"params": {"temperature": -1}}, "temperature"),
        ({"params": {"batch_size": {"float": [1, 2]}}}, "batch_size"),
        ({"search": {"sampler": "bayes"}}, "bayes"),
        ({"pruner": {"reduction": 1}}, "reduction"),
        ({"metric": {"name": "stsb_dev", "mode": "maximum"}}, "maximum"),
    ],
)
def test_mistakes_are_marked_at_their_key(
    validator: Draft202012Validator, change: dict[str, object], place: str
) -> None:
    plain = yaml.safe_load((ROOT / "spaces" / "simcse_unsup.yaml").read_text())
    found = list(validator.iter_errors({**plain, **change}))
    assert found
    assert any(place in f"{'/'.join(map(str, error.absolute_path))} {error.message}" for error in found)


def test_search_schema_prints_it() -> None:
    done = CliRunner().invoke(main, ["schema"])
    assert done.exit_code == 0
    assert json.loads(done.output) == json.loads(json.dumps(json_schema()))
