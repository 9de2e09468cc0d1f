"""Check before Ray starts that everything a study needs is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from search.space import Resources, Space
from search.space.checks import guides
from search.space.space import evaluation_notes
from search.store.journal import Journal
from search.store.layout import MachineError, UserError
from trainables.contract.errors import first_line
from trainables.contract.remote_code import runs_code
from trainables.training.machine import cuda_problem

CARDS_S = 15.0  # how long a node may take to report whether torch can use its GPUs; a busy one does not answer

OF_HUB = "commit "  # in the revision of an encoder that the hub still has when this machine's copy is gone
OR = " or "  # between the names of one revision; two revisions that share a name are equal


def preflight(space: Space) -> list[str]:
    """Check that everything a study needs is there and that its data can be read.

    Returns: one line per setting without effect and per part of the data that will be left out.
    Raises: DataError, EncoderError or what the method's own preflight raises, naming what is missing, where it was
        expected, and what to do.
    """
    from trainables.contract.registry import declared
    from trainables.data.checks import check_data
    from trainables.data.tokens import cache_dir, ready
    from trainables.encoders.locate import check_encoder

    method = declared(space.method)
    spec = {
        "method": space.method,
        "encoder": space.encoder,
        "data": asdict(space.data),
        "metric": space.metric.name,
        "holdout": space.metric.holdout,
        "params": space.base,
    }
    ready(cache_dir())
    notes = [*evaluation_notes(space), *(f"data: {note}" for note in check_data(spec))]
    check_encoder(space.encoder, method.encoders)
    for other in _others(space):
        check_encoder(other, method.encoders)
    if method.preflight is not None:
        method.preflight(spec)
    return notes


def check_cards(resources: Resources) -> None:
    """Torch can use a GPU that Ray counts, on one node at least; other nodes are checked by their trials.

    Raises: MachineError when it can on none. Without an answer within CARDS_S nothing is raised.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, num_gpus=min(1.0, resources.gpus or 0.0), max_retries=0)(cuda_problem)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("GPU")]
    asked = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(): node
        for node in nodes
    }
    problems, waiting, until = list[str](), list(asked), time.monotonic() + CARDS_S
    while waiting:
        answered, waiting = ray.wait(waiting, timeout=max(0.0, until - time.monotonic()))
        if not answered:
            break
        try:
            problem = ray.get(answered[0])
        except ray.exceptions.RayError:  # such as a node that lacks this package
            break
        if not problem:
            break
        problems.append(f"{problem} (node {asked[answered[0]]['NodeManagerHostname']})")
    for answer in waiting:
        ray.cancel(answer, force=True)
    if problems and len(problems) == len(asked):
        count = sum(node["Resources"]["GPU"] for node in nodes)
        raise MachineError(
            f"resources.gpus: Ray counts {count:g} GPU{'s' * (count != 1)}, torch cannot use any: {problems[0]}; "
            "install a torch with CUDA and a driver that fits it, or train on CPUs with `--set resources.gpus=0`"
        )


def check_files(space: Space, journal: Journal) -> None:
    """Check that the files that trials read have not changed since the study began; record the revision of new ones.

    Raises: UserError naming those that have: what trials of then and now measure could not be compared; those that are
        gone; or one that may not be read.
    """
    try:
        known, now = journal.ledger.files or {}, _revisions(space)
    except OSError as error:
        raise UserError(f"cannot read a file that trials need: {first_line(error)}. Nothing was run") from error
    if changed := [
        f"{name} ({known[name]} is now {is_})"
        for name, is_ in now.items()
        if not set(known.get(name, is_).split(OR)) & set(is_.split(OR))
    ]:
        raise UserError(
            f"changed since the study began: {'; '.join(changed)}. Nothing was run: results before and after could not"
            " be compared. Put back what was there, or start another study"
        )
    if gone := [name for name, of in known.items() if name not in now and OF_HUB not in of]:
        raise UserError("\n".join(map(_gone, gone)))
    if new := {name: revision for name, revision in now.items() if name not in known}:
        journal.append("files", revisions=new)


def _gone(name: str) -> str:
    """A line for a file or folder that was there when the study began."""
    from trainables.data.catalogue import DATA_DIR_VARIABLE, is_path

    source = name.partition(" ")[2]
    if name.startswith("data.") and not is_path(source):
        remedy = f"set {DATA_DIR_VARIABLE} to the folder that had it"
    else:
        remedy = f"put it back into {Path(source).expanduser().absolute().parent}"
    return f"{name}: is not on this machine any more; {remedy} (or --carry FILE on a cluster)"


def _revisions(space: Space) -> Mapping[str, str]:
    """What every data file, encoder and guide holds, by its name."""
    from trainables.data.checks import data_revisions

    found = dict(data_revisions(asdict(space.data)))
    roles = {**dict.fromkeys(_others(space), "guide"), space.encoder: "encoder"}
    for source, role in roles.items():
        if revision := _encoder_revision(source):
            found[f"{role} {source}"] = revision
    return found


def _others(space: Space) -> list[str]:
    """Encoders beside the trained one: that of the hard-negative mining, and guides."""
    return [*filter(None, ((space.data.mine or {}).get("encoder"), *guides(space)))]


def _encoder_revision(source: str) -> str:
    """ "" for an encoder that is not on this machine."""
    from trainables.encoders.locate import available_folder, folder_revision, hash_of

    if not source:
        return ""
    if (folder := available_folder(source)) is not None:
        of = folder_revision(folder, code=runs_code(source))
        names = [f"{of['files'][:12]}+{of['weights'][:12]}"]
        return OR.join([*names, *([f"{OF_HUB}{of['commit'][:12]}"] if "commit" in of else [])])
    vectors = Path(source).expanduser()
    return hash_of([vectors], whole=False)[:12] if vectors.is_file() else ""
