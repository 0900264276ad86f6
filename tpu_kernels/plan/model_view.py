"""The layers of a transformers model that a kernel could replace, found by structure and class.

Nothing here knows a model family. An attention module is a module that carries a transformers config and whose
`forward` asks transformers' attention interface for the function to call. One that is called attention and computes
it by itself is seen too: it is kept, and the plan says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tpu_kernels.errors import ModelStructureError, explain
from tpu_kernels.plan.attention_facts import attention_facts
from tpu_kernels.plan.implementation_name import depends_on_name
from tpu_kernels.plan.layer import Layer
from tpu_kernels.plan.match import LayerFacts


@lru_cache(maxsize=1024)
def _calls_attention_interface(module_class: Any) -> bool:
    try:
        source = inspect.getsource(module_class.forward)
    except (OSError, TypeError):
        return False
    return "ALL_ATTENTION_FUNCTIONS" in source or "attention_interface" in source


def unwrap(model: Any) -> PreTrainedModel:
    """The transformers model inside `model`: itself, or the one that a wrapper (PEFT, …) holds.

    Raises ModelStructureError where there is none, or more than one.
    """
    if isinstance(model, PreTrainedModel):
        return model
    found: list[PreTrainedModel] = []
    if isinstance(model, torch.nn.Module):
        inside: list[str] = []
        for path, module in model.named_modules():
            if isinstance(module, PreTrainedModel) and not any(path.startswith(f"{p}.") for p in inside):
                inside.append(path)
                found.append(module)
    if len(found) == 1:
        return found[0]
    raise ModelStructureError(
        explain(
            f"tpu_kernels found {'no' if not found else len(found)} transformers models in the object given.",
            needs="a transformers PreTrainedModel, or a module that wraps exactly one (PEFT, for example)",
            got=f"{type(model).__module__}.{type(model).__qualname__}"
            + "".join(f"\n  with {type(m).__name__}" for m in found),
            next_step="pass the transformers model itself.",
        )
    )


def model_from_config(config: PreTrainedConfig, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The structure of a model without its weights (on the meta device)."""
    with torch.device("meta"):
        kwargs = {} if dtype is None else {"dtype": dtype}
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, **kwargs)
    return model.eval()


def resolve_model(model: Any) -> PreTrainedModel:
    """A model to look at, from a model, a wrapper, a config, a Hub id, a folder or the path of a config.json.

    Raises ModelStructureError where there is no config, or none of a causal language model.
    """
    if isinstance(model, str | Path):
        model = _read_config(str(model))
    if not isinstance(model, PreTrainedConfig):
        return unwrap(model)
    try:
        return model_from_config(model, getattr(model, "dtype", None))
    except ValueError as error:
        raise ModelStructureError(
            explain(
                f"{type(model).__name__} is not the config of a causal language model.",
                got=str(error).splitlines()[0],
                next_step="pass a model, or the config of a model that generates text.",
            )
        ) from error


def _read_config(name: str) -> PreTrainedConfig:
    path = Path(name)
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(str(path.parent) if path.name == "config.json" else name)
    except (OSError, ValueError) as error:
        raise ModelStructureError(
            explain(
                f"no model config was found for {name!r}.",
                needs="a Hub id, a folder with a config.json, or the path of a config.json",
                got=str(error).strip().splitlines()[0],
                next_step="check the name; offline, the Hub id must be in the local cache.",
            )
        ) from error
    return config


def attention_layers(model: PreTrainedModel) -> Iterator[Layer]:
    """Every attention module of `model`, in module order; those that cannot be swapped have an obstacle."""
    swappable = {path: module for path, module in model.named_modules() if _is_swappable(module)}
    name_seen = next((path for path, module in swappable.items() if depends_on_name(module)), None)
    obstacle = f"`{name_seen}` does otherwise by the name of the attention implementation" if name_seen else None
    seen: list[str] = []
    for path, module in model.named_modules():
        if path in swappable:
            seen.append(path)
            parameter = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0, device="meta"))
            config: Any = module.config
            yield Layer(path, "attention", module, attention_facts(module, config, parameter.dtype), obstacle)
        elif _computes_attention_itself(module) and not _touches(path, (*swappable, *seen)):
            seen.append(path)
            facts = LayerFacts(class_name=type(module).__name__)
            yield Layer(path, "attention", module, facts, "it does not use transformers' attention interface")


def _is_swappable(module: torch.nn.Module) -> bool:
    if not isinstance(getattr(module, "config", None), PreTrainedConfig) or isinstance(module, PreTrainedModel):
        return False
    kind: Any = type(module)
    return bool(_calls_attention_interface(kind))


def _computes_attention_itself(module: torch.nn.Module) -> bool:
    name = type(module).__name__
    return name.endswith("Attention") and type(module).__module__.startswith("transformers.")


def _touches(path: str, others: tuple[str, ...]) -> bool:
    """Whether `path` contains one of `others` or stands inside one."""
    return any(other.startswith(f"{path}.") or path.startswith(f"{other}.") for other in others)
