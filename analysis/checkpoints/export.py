"""A trained network as a folder that other programs load, and that folder on the hub. Weights are safetensors only.

Methods on an encoder give a folder for `SentenceTransformer(path)` and `AutoModel.from_pretrained(path)`: the encoder
and its tokenizer, and sentence-transformers' own modules for the rest, so that nothing needs `trust_remote_code`:

| pooling | modules behind the encoder |
|---|---|
| cls, cls_before_pooler | Pooling (first token) |
| last | Pooling (last token) |
| avg | Pooling (mean) |
| avg_first_last, avg_top2 | WeightedLayerPooling with weights 1 on those two layers and 0 elsewhere, Pooling (mean) |
| pretrained_pooler | Pooling (first token), Dense (the encoder's pooler) |

and behind them one or two Dense for a head that is used at test time, as whitening is.

A method with another network has its own export (`Method.export`).
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from analysis.checkpoints.trained import Trained
from analysis.errors import AnalysisError, InputError
from trainables.contract.errors import first_line
from trainables.contract.remote_code import runs_code, without_code
from trainables.encoders.adapters import merged
from trainables.encoders.load import EncoderSource, LoadedEncoder
from trainables.encoders.locate import HUB_SECONDS, available_folder
from trainables.encoders.network import SentenceNetwork

T = TypeVar("T")
PACKAGE = "sentence_transformers.models"  # the module paths that every version of sentence-transformers understands
IDENTITY, RELU, TANH = (
    "torch.nn.modules.linear.Identity",
    "torch.nn.modules.activation.ReLU",
    "torch.nn.modules.activation.Tanh",
)
TWO_LAYERS = ("avg_first_last", "avg_top2")


@dataclass(frozen=True)
class Dense:
    """One layer of a head at test time: y = activation(W x + b). weight: (out, in), bias: (out,) or None."""

    weight: Tensor
    bias: Tensor | None
    activation: str


def export(trained: Trained, folder: Path, card: str, width: int | None = None) -> None:
    """Write the network and its model card (README.md).

    Args: width: what SentenceTransformer cuts its vectors to (`truncate_dim`), None = nothing.
    Raises: InputError if the folder exists and is not empty, or the method has a network of its own and no export, or
        one that cuts nothing.
    """
    _check_new(folder)
    own = trained.method.export
    if own is None and not isinstance(trained.network, SentenceNetwork):
        raise InputError(
            f"method {trained.spec.method}: its network is no SentenceNetwork, so that its Method must say how it is "
            "exported (Method(export=...))"
        )
    if own is not None and width:
        raise InputError(f"--truncate-dim: the loader of method {trained.spec.method} gives whole vectors only")
    folder.mkdir(parents=True, exist_ok=True)
    if own is not None:
        own(trained.network, trained.config, trained.source, trained.language, folder)
    else:
        _export_encoder(trained, trained.source, folder, width)
    _write_card(folder, card)


def copy_model(source: str, folder: Path, card: str) -> None:
    """Copy a model that a script wrote (path or URI of its folder), with our model card in the place of its own.

    Raises: InputError as `export`.
    """
    _check_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    filesystem, path = fsspec.core.url_to_fs(source)
    for name in filesystem.find(path):
        target = folder / name[len(path) :].lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        filesystem.get_file(name, str(target))
    _write_card(folder, card)


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists already; expected a new or empty folder: give another --out")


def _write_card(folder: Path, card: str) -> None:
    readme = folder / "README.md"
    readme.write_text(card, encoding="utf-8")
    for path in folder.rglob("*"):  # a new file's rights for all: safetensors writes for the owner alone
        if path.is_file():
            path.chmod(readme.stat().st_mode & 0o777)


def _export_encoder(trained: Trained, loaded: EncoderSource, folder: Path, cut_to: int | None) -> None:
    network, config = trained.network, trained.config
    assert isinstance(loaded, LoadedEncoder)
    encoder, width = network.encoder, network.encoder.config.hidden_size
    layers = encoder.config.num_hidden_layers
    merged(encoder)
    if isinstance(getattr(encoder, "pooler", None), nn.Identity):
        encoder.pooler = loaded.model.pooler  # the untrained one: AutoModel would otherwise draw random weights for it
    two_layers = config.pooling in TWO_LAYERS
    encoder.config.output_hidden_states = two_layers
    disable_progress_bar()
    encoder.save_pretrained(folder)  # safetensors; transformers writes nothing else any more
    loaded.tokenizer.save_pretrained(folder)
    if runs_code(loaded.source):
        _copy_code((encoder, encoder.config, loaded.tokenizer), folder)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": network.longest, "do_lower_case": False})

    modules = [("", "Transformer")]
    if two_layers:
        weights = torch.zeros(layers)
        weights[[n - 1 for n in network.wanted]] = 1.0  # module and weights start at the first transformer layer
        own = {"word_embedding_dimension": width, "layer_start": 1, "num_hidden_layers": layers}
        modules.append(_module(folder, len(modules), "WeightedLayerPooling", own, {"layer_weights": weights}))
    mean = config.pooling.startswith("avg")
    own = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": not mean and config.pooling != "last",
        "pooling_mode_mean_tokens": mean,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_lasttoken": config.pooling == "last",
    }
    if mean and not config.include_prompt:
        own["include_prompt"] = False
    modules.append(_module(folder, len(modules), "Pooling", own))
    for dense in _dense_layers(network):
        out, into = dense.weight.shape
        own = {
            "in_features": into,
            "out_features": out,
            "bias": dense.bias is not None,
            "activation_function": dense.activation,
        }
        tensors = {"linear.weight": dense.weight} | ({} if dense.bias is None else {"linear.bias": dense.bias})
        modules.append(_module(folder, len(modules), "Dense", own, tensors))
    _write(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"{PACKAGE}.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
    )
    about: dict[str, Any] = {"similarity_fn_name": "cosine"} | ({"truncate_dim": cut_to} if cut_to else {})
    if trained.prompts:
        about["prompts"] = dict(trained.prompts)
        about["default_prompt_name"] = "query" if "query" in trained.prompts else None
    _write(folder / "config_sentence_transformers.json", about)


def _copy_code(parts: Sequence[object], folder: Path) -> None:
    """Copy the modules of an encoder's own code, wherever they came from, and name them as the folder's own."""
    for part in parts:
        if type(part).__module__.startswith("transformers_modules."):
            for file in Path(inspect.getfile(type(part))).parent.glob("*.py"):
                if file.name != "__init__.py":
                    shutil.copyfile(file, folder / file.name)
    for path in (folder / "config.json", folder / "tokenizer_config.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "auto_map" in content:  # "id--module.Class" is that of another repository
            text = re.sub(r'"[^"]*--', '"', json.dumps(content["auto_map"]))
            _write(path, content | {"auto_map": json.loads(text)})


def _module(
    folder: Path, number: int, kind: str, config: dict[str, Any], tensors: dict[str, Tensor] | None = None
) -> tuple[str, str]:
    path = f"{number}_{kind}"
    (folder / path).mkdir()
    _write(folder / path / "config.json", config)
    if tensors:
        parts = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(parts, folder / path / "model.safetensors")
    return path, kind


def _dense_layers(network: SentenceNetwork) -> list[Dense]:
    """What comes behind the pooling at test time, as linear layers; batch-norm in evaluation mode is folded in."""
    layers: list[Dense] = []
    if network.pooling == "pretrained_pooler":
        pooler = network.encoder.pooler
        dense = pooler if isinstance(pooler, nn.Linear) else pooler.dense
        layers.append(Dense(dense.weight, dense.bias, TANH))
    if network.head is None or not network.head_at_test:
        return layers
    for part in network.head.children():
        if isinstance(part, nn.Linear):
            layers.append(Dense(part.weight, part.bias, IDENTITY))
        elif isinstance(part, nn.BatchNorm1d):
            layers[-1] = _folded(layers[-1], part)
        else:
            kind = {nn.Tanh: TANH, nn.ReLU: RELU}[type(part)]
            layers[-1] = Dense(layers[-1].weight, layers[-1].bias, kind)
    return layers


def _folded(layer: Dense, norm: nn.BatchNorm1d) -> Dense:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.affine:
        scale = scale * norm.weight.double()
    bias = torch.zeros_like(scale) if layer.bias is None else layer.bias.double()
    shift = (bias - norm.running_mean.double()) * scale
    if norm.affine:
        shift = shift + norm.bias.double()
    return Dense((layer.weight.double() * scale[:, None]).float(), shift.float(), layer.activation)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_repository(repository: str) -> None:
    """Before anything is written: the name can be one, and there is a token that the hub takes.

    Raises: InputError for a name or token that is none; AnalysisError if the hub does not answer.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise InputError(f"--push-to-hub: {first_line(error)}") from None
    if get_token() is None:
        raise InputError(
            "--push-to-hub: no token of the hub on this machine; log in with `hf auth login`, or set HF_TOKEN"
        )
    _asked(repository, lambda: HfApi().whoami())


def push(folder: Path, repository: str, *, public: bool) -> str:
    """Upload a folder as a model of the hub, made if it is not there; its address.

    Raises: InputError if the repository exists with another visibility, or may not be written;
        AnalysisError if the hub does not answer.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    made = _asked(repository, lambda: api.create_repo(repository, private=not public, exist_ok=True))
    full = made.repo_id
    private = bool(_asked(full, lambda: api.model_info(full, timeout=HUB_SECONDS)).private)
    if private is public:
        kind, remedy = ("private", "leave --public out") if private else ("public", "give --public")
        raise InputError(f"--push-to-hub: {full} is there already and {kind}; {remedy}, or name another")
    _asked(full, lambda: api.upload_folder(repo_id=full, folder_path=folder, commit_message=f"Upload {folder.name}"))
    return str(made)


def base_licence(encoder: str, *, ask: bool) -> str | None:
    """The licence that an encoder's own card states: beside its files here, or (ask) on the hub; None = none found."""
    from huggingface_hub import HfApi, ModelCard

    if not encoder or encoder.startswith("builtin:"):
        return None
    folder = available_folder(encoder)
    try:
        if folder is not None and (folder / "README.md").is_file():
            found = ModelCard.load(folder / "README.md").data.license
        elif ask:
            name, _, revision = without_code(encoder).partition("@")
            card = HfApi().model_info(name, revision=revision or None, timeout=HUB_SECONDS).card_data
            found = card.license if card else None
        else:
            return None
    except Exception:  # a card that cannot be read, a folder's name, a hub that does not know it: no licence found
        return None
    return str(found) if found else None


def _asked(repository: str, question: Callable[[], T]) -> T:
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return question()
    except HfHubHTTPError as error:
        status = error.response.status_code
        why = getattr(error, "server_message", None) or first_line(error)
        if status == 401:
            raise InputError(
                f"--push-to-hub: the hub does not take the token ({why}); `hf auth login` again"
            ) from error
        if status in (403, 404):
            raise InputError(f"--push-to-hub: {repository}: not allowed to this token ({why})") from error
        raise AnalysisError(f"--push-to-hub: {repository}: the hub answers {status}: {why}") from error
    except Exception as error:  # the hub's client raises the HTTP library's and the system's errors, too
        raise AnalysisError(
            f"--push-to-hub: {repository}: {type(error).__name__}: {first_line(error)}; check the network"
        ) from error
