"""Which weights of an encoder a trial trains: LoRA adapters, the blocks that are not frozen, learning rates by depth.

LoRA (Hu et al. 2021, arXiv:2106.09685) by peft puts small trained matrices beside frozen linear layers. The frozen
weights are not copied: all trials of a process share one copy per device and precision. Checkpoints and saved states
hold the adapters only; `merged` adds them to the weights for an export.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.errors import EncoderError
from trainables.encoders.facts import adapted

NAME = "default"  # peft's name for the only adapter of a layer
ABOVE = -1  # all blocks
NOT_BY_NAME = {  # depth of weights outside of the blocks, by model_type, where their name does not show it
    "deberta-v2": {"encoder.LayerNorm": 0, "encoder.conv": 1},  # of relative positions (v3); beside the first block
    "lfm2": {"embedding_norm": ABOVE},
    "xlnet": {"mask_emb": 0},  # of pre-training: never read here
}
Base = MutableMapping[tuple[str, torch.device, torch.dtype], Tensor]  # frozen weights that a process shares


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can have an adapter, by their full name."""
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer

    return {name: part for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D))}


def without_numbers(name: str) -> str:
    """A module's name without block numbers: "encoder.layer.3.output.dense" is "encoder.layer.output.dense"."""
    return re.sub(r"\.\d+(?=\.|$)", "", name)


def sharing_copy(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are views of the model's and must not be written to."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    memo |= {id(b): b for b in model.buffers()}
    return copy.deepcopy(model, memo)


def add_adapters(model: Any, config: EncoderConfig, linear: Sequence[str], base: Base, seed: int) -> None:
    """Freeze a `sharing_copy` and put adapters beside the layers that `lora.targets` names; they add 0 at first.

    Args:
        linear: names without numbers of the layers that may be adapted.
        base: frozen weights of earlier trials, see `share_frozen_weights`.
        seed: decides the new weights, alone.
    Raises: EncoderError without peft, or for a layer that cannot be adapted.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise EncoderError('lora.rank: needs peft: pip install "contrastive-search[lora]"') from error
    wanted = {layer for layers in adapted(linear, config.lora_targets).values() for layer in layers}
    layers = {name: part for name, part in linear_layers(model).items() if without_numbers(name) in wanted}
    own = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # type: ignore[arg-type]  # peft divides: a float is as good
        lora_dropout=config.lora_dropout,
        target_modules=list(layers),
        fan_in_fan_out=any(not isinstance(part, nn.Linear) for part in layers.values()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(own, model, NAME)
        except ValueError as error:  # the family's fast kernels bypass the module's forward (Mamba)
            family, names = model.config.model_type, ", ".join(dict.fromkeys(n.rpartition(".")[2] for n in linear))
            raise EncoderError(
                f"lora.targets: peft does not adapt all of {config.lora_targets!r} in {family}; name some of {names}"
            ) from error
    model.frozen_base = base
    model.register_state_dict_post_hook(_adapters_only)
    model.register_load_state_dict_pre_hook(_remember_prefix)
    model.register_load_state_dict_post_hook(_base_is_not_missing)


def adapter_output(layer: nn.Module, x: Tensor) -> Tensor | None:
    """(..., out) what a layer's adapter adds for its input x (..., in), in the type of x; None without an adapter."""
    if not hasattr(layer, "lora_A"):
        return None
    own: Any = layer
    down, up, scaling = own.lora_A[NAME].weight, own.lora_B[NAME].weight, float(own.scaling[NAME])
    inner = F.linear(own.lora_dropout[NAME](x), down.to(x.dtype))
    return F.linear(inner, up.to(x.dtype)) * scaling


def share_frozen_weights(network: nn.Module, device: torch.device, bf16: bool) -> None:
    """Move frozen weights to the trial's device, reusing what an earlier trial of the process has there.

    Args:
        bf16: whether matrix products run in bf16; adapted layers' weights are then stored in it, instead of being cast
            by autocast in every step. Everything else stays float32.
    """
    for model in network.modules():
        base: Base | None = vars(model).get("frozen_base")
        if base is None:
            continue
        for name, part in model.named_modules():
            if ".lora_" in name:
                continue
            dtype = torch.bfloat16 if bf16 and name.endswith(".base_layer") else torch.float32
            for own, p in part.named_parameters(recurse=False):
                key = (f"{name}.{own}".replace(".base_layer", ""), device, dtype)
                if key not in base:
                    base[key] = p.detach().to(device, dtype)
                p.data = base[key]


def merged(model: Any) -> None:
    """Replace adapted layers by plain ones of W + (alpha / rank) B A, in float32; the shared weights stay untouched.

    A model without adapters is left alone.
    """
    if vars(model).get("frozen_base") is None:
        return
    for name, layer in list(model.named_modules()):
        if not hasattr(layer, "lora_A"):
            continue
        plain = copy.deepcopy(layer.get_base_layer())  # a `Trunk` may still hold the layer
        plain.weight = nn.Parameter(plain.weight.detach().float() + layer.get_delta_weight(NAME).detach())
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, plain)
    del model.frozen_base, model.peft_config  # from here on its state is that of a plain model


def _adapters_only(model: nn.Module, state: Any, prefix: str, _: Any) -> None:
    if vars(model).get("frozen_base") is not None:
        for name in [name for name in state if name.startswith(prefix) and ".lora_" not in name]:
            del state[name]


def _remember_prefix(model: Any, _: Any, prefix: str, *__: Any) -> None:
    model.loaded_as = prefix


def _base_is_not_missing(model: Any, incompatible: Any) -> None:
    missing = incompatible.missing_keys
    missing[:] = [name for name in missing if ".lora_" in name or not name.startswith(model.loaded_as)]


def blocks(model: Any) -> list[nn.Module]:
    """The transformer blocks in the order they run; none in a family whose layers share their weights (ALBERT)."""
    layers = model.config.num_hidden_layers
    found = (part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == layers)
    return list(next(found, []))


def depths(model: Any) -> dict[int, int]:
    """Depth of every parameter by its id: 0 = embeddings, n = block n, one more than the blocks = above all blocks."""
    layers = blocks(model)
    top = len(layers) + 1
    found = {id(p): n for n, block in enumerate(layers, 1) for p in block.parameters()}
    for own, depth in NOT_BY_NAME.get(model.config.model_type, {}).items():
        for name, p in model.named_parameters():
            if f"{name}.".startswith(f"{own}."):
                found[id(p)] = top if depth == ABOVE else depth
    for name, part in model.named_modules():
        for own, p in part.named_parameters(recurse=False):
            embeds = isinstance(part, nn.Embedding) or "embed" in f"{name}.{own}"
            found.setdefault(id(p), 0 if embeds else top)
    return found


def has_weights_above(model: Any) -> bool:
    """Whether weights other than a pooler's lie above all blocks: a last norm."""
    found, top = depths(model), len(blocks(model)) + 1
    return any(found[id(p)] == top for name, p in model.named_parameters() if not name.startswith("pooler."))


def freeze(model: Any, layers: int) -> None:
    """Freeze the embeddings and the first `layers` blocks."""
    found = depths(model)
    for p in model.parameters():
        if found[id(p)] <= layers:
            p.requires_grad_(False)


def layers_below_top(network: nn.Module) -> dict[int, int]:
    """Number of blocks of its encoder that lie above a parameter, by its id; 0 in the last block and outside encoders.

    Embeddings lie below all blocks.
    """
    found: dict[int, int] = {id(p): 0 for p in network.parameters()}
    for encoder in _encoders(network):
        layers = len(blocks(encoder))
        found |= {key: max(0, layers - depth) for key, depth in depths(encoder).items()}
    return found


def _encoders(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost models of transformers in a network."""
    if hasattr(part, "get_input_embeddings") and hasattr(part, "config"):
        yield part
    else:
        for child in part.children():
            yield from _encoders(child)
