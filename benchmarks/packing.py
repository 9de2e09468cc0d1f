"""(c) One training step packed against padded: the same network, sentences and optimiser, alternated.

STS-B train sentences (`SEARCH_DATA_DIR`), an encoder of MiniLM's shape with random weights, batches of 64 examples in
random order. Padded is the library's own forward on batches padded to their longest sentence, which is also what
encoders get that cannot be packed. A step is assembly, forward, loss, backward, clipping and AdamW.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

BATCH, SEED = 64, 0
SHAPE = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
# Method -> what its step looks like here: views per example and what the defaults differ in.
METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "simcse": (2, {}),
    "simcse_sup": (3, {}),
    "selfccl": (3, {"pooling": "avg_first_last", "head": "none"}),
    "sda": (3, {"head": "mlp_bn"}),
}


def run(runs: int) -> dict[str, Any]:
    """Median step seconds of both ways per method, and their ratio (target at most 0.6)."""
    import torch

    from trainables.encoder import load_encoder

    data = _data_folder()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_encoder(str(_random_encoder(data, Path(folder))))
    assert not loaded.packing_note, loaded.packing_note
    sentences = _sentences(data, loaded.tokenizer)
    rows = []
    for method, (views, params) in METHODS.items():
        steps = {
            "packed": _stepper(loaded, sentences, views, params, device),
            "padded": _stepper(replace(loaded, packing_note="for comparison"), sentences, views, params, device),
        }
        seconds: dict[str, list[float]] = {way: [] for way in steps}
        for number in range(runs + 1):
            for way, step in steps.items():
                taken = step(number)
                if number:  # the first step of each warms up
                    seconds[way].append(taken)
        medians = {way: statistics.median(values) for way, values in seconds.items()}
        rows.append(
            {
                "method": method,
                "sentences": views * BATCH,
                **{f"{way}_ms": round(value * 1000, 1) for way, value in medians.items()},
                "ratio": round(medians["packed"] / medians["padded"], 3),
            }
        )
    return {"rows": rows, "threads": torch.get_num_threads(), "device": str(device)}


def _stepper(
    loaded: Any, sentences: list[Any], views: int, params: Mapping[str, Any], device: Any
) -> Callable[[int], float]:
    """A function that trains one step on the batch of a number and gives the seconds it took."""
    import numpy as np
    import torch

    from trainables.configs import SimcseConfig
    from trainables.losses import info_nce
    from trainables.network import SentenceNetwork

    network = SentenceNetwork(SimcseConfig(**params), loaded, SEED).to(device).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-5, weight_decay=0.0, fused=True)

    def step(number: int) -> float:
        chosen = np.random.default_rng([SEED, number]).choice(len(sentences), BATCH, replace=False)
        batch = {f"view{v}": [sentences[i] for i in chosen] for v in range(views)}
        start = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            pooled = network.encode(batch)
        first, *others = network.project(pooled).values()
        torch.autograd.backward([info_nce(first, other, 0.05) for other in others])
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return step


def _data_folder() -> Path:
    folder = os.environ.get("SEARCH_DATA_DIR")
    if not folder or not (Path(folder) / "en_stsb_train.tsv").is_file():
        raise SystemExit(f"packing: needs en_stsb_train.tsv in SEARCH_DATA_DIR, got {folder or 'no SEARCH_DATA_DIR'}")
    return Path(folder)


def _random_encoder(data: Path, folder: Path) -> Path:
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    pieces = (data / "vocab_bert_base_uncased.txt").read_text("utf-8").splitlines()
    torch.manual_seed(SEED)
    BertModel(BertConfig(vocab_size=len(pieces), **SHAPE)).save_pretrained(folder)
    BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, do_lower_case=True).save_pretrained(folder)
    return folder


def _sentences(data: Path, tokenizer: Any) -> list[Any]:
    import numpy as np

    lines = (data / "en_stsb_train.tsv").read_text("utf-8").splitlines()[1:]
    texts = [text for line in lines for text in line.split("\t")[:2]]
    return [np.array(ids, np.int32) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
