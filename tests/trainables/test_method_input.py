"""Wrong input of each method is said before training starts: by the space file, the data check or the vector check."""

from __future__ import annotations

import gzip
import struct

import pytest
import yaml

from search.space import SpaceError, load_space
from trainables.contract.declaration import WORD_VECTORS
from trainables.contract.errors import DataError
from trainables.data.checks import check_data
from trainables.encoders.locate import check_encoder

SPACE = """
name: wrong
method: {method}
encoder: {encoder}
data: {{train: builtin, dev: [builtin]}}
metric: {{name: builtin_dev}}
params: {{batch_size: {{grid: [8, 16]}}, {param}}}
search: {{sampler: grid}}
"""


@pytest.mark.parametrize(
    ("method", "param", "said"),
    [
        ("sda", "delta: 1.5", "wrong.yaml:7: params.delta: expected a number >= 0 and <= 1, got 1.5"),
        ("sda", "delta: {float: [0.1, 2.0]}", "params.delta"),
        ("gclsr", "group_size: 100", "params.group_size: must divide 4096, got 100"),
        ("gclsr", "num_groups: 3", "params.num_groups: must divide 4096, got 3"),
        ("gclsr", "p_gwn: 0.9", "must be 1, got 1.4"),
        ("selfccl", "margin: -0.1", "params.margin: expected a number >= 0 and <= 2, got -0.1"),
        ("edacse", "max_marks: 8, unit: word", "params.max_marks: expected a whole number >= 0 and <= 7, got 8"),
        ("simcse", "temperature: 0", "params.temperature: expected a number > 0, got 0"),
        ("simcse_sup", "head_at: train_and_test, pooling: avg", "needs pooling cls, got avg"),
    ],
)
def test_space_file(tmp_path, method, param, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(
        SPACE.format(method=method, param=param, encoder="builtin:vectors" if method == "gclsr" else "builtin:tiny")
    )
    with pytest.raises(SpaceError) as caught:
        load_space(path, find_data=True)
    assert said in str(caught.value)
    assert "wrong.yaml:7:" in str(caught.value)


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


def test_word_vectors_of_a_wrong_dimension(tmp_path):
    glove = tmp_path / "glove.txt"
    glove.write_text("the 0.1 0.2 0.3\ncat 0.1 0.2\n")
    with pytest.raises(DataError, match=r"glove.txt:2: expected a word and 3 numbers as before, got 2"):
        check_encoder(str(glove), WORD_VECTORS)
    binary = tmp_path / "short.bin.gz"
    binary.write_bytes(
        gzip.compress(b"2 4\n" + b"the " + struct.pack("<3f", 1, 2, 3) + b"cat " + struct.pack("<3f", 1, 2, 3))
    )
    with pytest.raises(DataError, match=r"short\.bin\.gz"):
        check_encoder(str(binary), WORD_VECTORS)
    with pytest.raises(DataError, match="no such file"):
        check_encoder(str(tmp_path / "none.bin"), WORD_VECTORS)
