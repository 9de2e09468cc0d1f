"""One training step packed against padded, per method: the same trial by the real loop, steps alternated.

STS-B train sentences (and NLI triplets), encoders of known shapes with random weights, batches of 64. Padded is the
library's own forward on batches padded to their longest sentence, which is also what encoders get that cannot be
packed. A step is views, assembly, forward, loss, backward, clipping and optimiser. Processor seconds of one thread
stand beside wall seconds: on a busy machine only they say something.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.inputs import data_folder, make_encoder, stsb_sentences, write_lines

BATCH = 64
CASES = (
    ("simcse", "tiny"),
    ("simcse", "mini"),
    ("simcse", "modernbert"),
    ("simcse", "qwen3"),
    ("simcse", "minilm"),
    ("edacse", "minilm"),
    ("simcse_sup", "minilm"),
    ("selfccl", "minilm"),
)  # method, shape in inputs.SHAPES
ON_A_GPU = (("simcse", "base"),)
PRECISIONS = ("fp32", "auto")
PARAMS = {"qwen3": {"pooling": "last"}}  # a decoder


def run(runs: int) -> dict[str, Any]:
    """Medians over `runs` alternated steps (at least 7), and the ratio packed / padded."""
    from trainables.training.machine import use_large_pages

    use_large_pages()  # as in a trial's process
    import torch

    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    cases = (*CASES, *ON_A_GPU) if device.type == "cuda" else CASES
    with tempfile.TemporaryDirectory() as folder:
        encoders = {shape: make_encoder(Path(folder) / shape, shape) for _, shape in cases}
        sentences = write_lines(Path(folder) / "stsb.txt", stsb_sentences())
        for method, shape in cases:
            for precision in PRECISIONS:
                ways = {
                    way: training(method, precision, encoders[shape], sentences, way == "padded", device)
                    for way in ("packed", "padded")
                }
                seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
                for _ in range(max(runs, 7) + 2):
                    for way, one in ways.items():
                        seconds[way].append(timed_step(one))
                medians = {
                    way: [statistics.median(side) for side in zip(*taken[2:], strict=True)]  # the first two warm up
                    for way, taken in seconds.items()
                }
                wall, processor = (medians["packed"][k] / medians["padded"][k] for k in (0, 1))
                rows.append(
                    {
                        "method": method,
                        "shape": shape,
                        "precision": ways["packed"].precision,
                        **{f"{way} ms": round(1000 * values[0], 1) for way, values in medians.items()},
                        "ratio": round(wall, 3),
                        "ratio of processor time": round(processor, 3),
                    }
                )
    return {"rows": rows, "device": str(device)}


def training(
    method: str, precision: str, encoder: Path, sentences: Path, padded: bool, device: Any, dev: str = "stsb",
    **params: Any,
) -> Any:  # fmt: skip
    """A trial that stands before its first step, in the real loop. params: instead of the method's own."""
    from trainables.contract.config import build
    from trainables.contract.trial import TrialSpec
    from trainables.encoders.load import LoadedEncoder
    from trainables.evaluation.scoring import evaluate
    from trainables.methods.method import load_method
    from trainables.training.checkpoint import TrialFiles
    from trainables.training.distributed import World
    from trainables.training.loop import Training
    from trainables.training.method_trial import load_inputs

    own = load_method(method)
    train = str(sentences) if own.declaration.columns == "sentences" else str(data_folder() / "en_nli_triplets.tsv")
    data = {"train": train, "dev": [dev], "language": "en"}
    spec = TrialSpec(method=method, encoder=str(encoder), data=data, metric=f"{dev}_dev", folder="unused")
    config: Any = build(
        own.config,
        {"batch_size": BATCH, "max_length": 64, "precision": precision, **PARAMS.get(encoder.name, {}), **params},
    )
    inputs = load_inputs(spec, device)
    source = inputs.source
    if padded:
        assert isinstance(source, LoadedEncoder)
        source = replace(source, packing_note="for comparison")

    def evaluated(embed: Any) -> tuple[float, dict[str, float], dict[str, Any]]:
        metrics = evaluate(embed, inputs.sets).metrics
        return metrics[spec.metric], metrics, {}

    return Training(
        method=own,
        config=config,
        network=own.network(config, source, 0),
        examples=own.prepare(inputs.corpus.columns, config, 0, inputs.tools),
        evaluate=evaluated,
        seed=0,
        files=TrialFiles("unused"),
        world=World(device=device),
    )


def timed_step(one: Any) -> tuple[float, float]:
    """(wall, processor) seconds of the trial's next step."""
    import torch

    wall, processor = time.perf_counter(), time.process_time()
    one._step(one.batches[one.progress.step])
    if one.world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - processor
