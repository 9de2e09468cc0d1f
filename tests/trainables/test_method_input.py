"""Wrong input of each method is reported before training starts, by the space file or the data check."""

from __future__ import annotations

import pytest
import yaml

from search.space import SpaceError, load_space
from trainables.contract.errors import DataError
from trainables.data.checks import check_data

SPACE = """
name: wrong
method: {method}
encoder: {encoder}
data: {{train: builtin, dev: [builtin]}}
metric: {{name: builtin_dev}}
params: {{batch_size: {{grid: [8, 16]}}, {param}}}
search: {{sampler: grid}}
"""


IDLE = [
    ("simcse_sup", "loss_form: both_rows", "hard_negative_weight", "{choice: [0.0, 0.7]}"),
    ("sda", "negation_negative: false", "delta", "{choice: [0.1, 0.9]}"),
    ("sda", "negation_negative: {choice: [true, false]}", "delta", "{choice: [0.1, 0.9]}"),
    ("selfccl", "pacing: false", "pacing_exponent", "2.0"),
    ("gclsr", "augmentation: full", "pwva_p", "{choice: [0.3, 0.5]}"),
    ("gclsr", "num_groups: 256", "group_size", "{choice: [16, 32]}"),
    ("simcse", "pooling: avg", "head", "{choice: [linear_tanh, none]}"),
    ("simcse", "pooling: {choice: [cls, avg]}", "head", "{choice: [linear_tanh, mlp_bn]}"),
    ("edacse", "lambda: {choice: [0.0, 0.3]}", "max_marks", "{int: [1, 7]}"),
    ("edacse", "max_marks: 0", "lambda", "0.1"),
    ("simcse", "mlm_weight: 0.0", "mlm_probability", "0.3"),
    ("simcse", "lora.rank: 0", "lora.alpha", "{choice: [8, 16]}"),
    ("arccse", "triplet_weight: 0", "masked", "{choice: [0.1, 0.2]}"),
    ("diffcse", "difference_weight: 0", "mask_share", "0.2"),
]


@pytest.mark.parametrize(("method", "other", "name", "value"), IDLE)
def test_what_nothing_reads_is_not_searched(tmp_path, method, other, name, value):
    path = tmp_path / "idle.yaml"
    encoder = "builtin:vectors" if method == "gclsr" else "builtin:tiny"
    path.write_text(SPACE.format(method=method, encoder=encoder, param=f"{other}, {name}: {value}"))
    with pytest.raises(SpaceError, match=rf"^\S+:7: params.{name}: has no meaning with [^\n]*$") as caught:
        load_space(path, find_data=True)
    assert ("give it `when: {" in str(caught.value)) is ("choice" in other)
    deciding = other.partition(":")[0]
    fine = {"negation_negative": "[true]", "pooling": "[cls]", "lambda": "[0.3]"}
    if "choice" in other:
        path.write_text(path.read_text().replace(value, f"{value[:-1]}, when: {{{deciding}: {fine[deciding]}}}}}"))
        load_space(path, find_data=True)


@pytest.mark.parametrize(
    ("method", "param"),
    [
        ("simcse", "pooling: avg, head: none"),  # what there is
        ("simcse", "pooling: {choice: [cls, avg]}, head: mlp_bn"),  # a constant that one of the points reads
        ("sda", "negation_negative: false, delta: 0.5"),  # its default
        ("edacse", "max_marks: {int: [0, 7]}"),
        ("simcse_random", "mlm_weight: {float: [0.0, 1.0]}, mlm_probability: {float: [0.1, 0.3]}"),  # 0 is never drawn
    ],
)
def test_constants_may_be_without_meaning_in_some_points(tmp_path, method, param):
    path = tmp_path / "fine.yaml"
    text = SPACE.format(method=method.partition("_")[0], encoder="builtin:tiny", param=param)
    path.write_text(text.replace("sampler: grid", "trials: 2") if "random" in method else text)
    space = load_space(path, find_data=True)
    given = yaml.safe_load(f"{{{param}}}")
    assert {name: value for name, value in given.items() if name not in space.params} == {
        name: value for name, value in space.constants.items() if name in given
    }


@pytest.mark.parametrize("method", ["simcse_sup", "selfccl"])
def test_triplets_without_negatives(tmp_path, method):
    path = tmp_path / "pairs.tsv"
    path.write_text("anchor\tpositive\nA man eats.\tA person eats.\n")
    with pytest.raises(DataError, match="negative"):
        check_data({"method": method, "data": {"train": str(path), "dev": ["builtin"], "language": "en"}})
