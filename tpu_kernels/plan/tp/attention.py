"""Attention: heads that divide, heads that do not, and what else sees all heads at once."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import torch

from tpu_kernels.plan.attention_facts import _setting, attention_facts
from tpu_kernels.plan.tp.parts import Chunk, HeadSplit
from tpu_kernels.plan.tp.rules import GATHERING, Rules, replicate
from tpu_kernels.plan.tp.structure import Group
from tpu_kernels.plan.tp.styles import COLWISE, Heads, KeyValueHeads

_INPUTS: Final = ("q_proj", "k_proj", "v_proj")
_OUTPUT: Final = "o_proj"


@dataclass(frozen=True)
class Figures:
    """Heads of an attention module, and the numbers in a cached key and value of one head."""

    query_heads: int
    kv_heads: int
    key_size: int
    value_size: int


def figures_of(module: Any) -> Figures | None:
    """None where there is no config, or where it does not say how many heads there are."""
    if not hasattr(module, "config"):
        return None
    heads, kv = _setting(module, module.config, "num_attention_heads"), None
    groups = getattr(module, "num_key_value_groups", None)
    if not isinstance(heads, int) or heads < 1:
        return None
    if isinstance(groups, int) and groups >= 1:
        kv = heads // groups
    kv = kv or _setting(module, module.config, "num_key_value_heads") or heads
    parameter = next((each for each in module.parameters() if each.is_floating_point()), None)
    dtype = torch.float32 if parameter is None else parameter.dtype
    sizes = attention_facts(module, module.config, dtype).sizes
    if "head_dim" not in sizes or not isinstance(kv, int):
        return None
    return Figures(heads, kv, sizes["head_dim"], sizes["value_head_dim"])


def can_add_rules(group: Group) -> bool:
    """Whether attention that the model's plan says nothing of is of the usual structure: three projections into heads,
    one out of them, and nothing else that is wider than a head."""
    for module in group.modules:
        figures, parts = figures_of(module), dict(module.named_children())
        projections = {name for name, part in parts.items() if isinstance(part, torch.nn.Linear)}
        others = (part for name, part in parts.items() if name not in projections)
        if figures is None or projections != {*_INPUTS, _OUTPUT} or names_heads(module):
            return False
        if any(each.ndim > 1 or each.numel() > figures.key_size for part in others for each in part.parameters()):
            return False
    return True


def add_attention_rules(rules: Rules, group: Group) -> None:
    """Rules for attention that the model's plan says nothing of."""
    why = "the model has no plan of its own"
    for name in _INPUTS:
        rules.set(group.child(name), "colwise", why)
    rules.set(group.child(_OUTPUT), "rowwise", why)


def names_heads(module: torch.nn.Module) -> bool:
    """Whether the module's forward speaks of a number of heads instead of reading it from its tensors."""
    kind: Any = type(module)
    try:
        source = inspect.getsource(kind.forward)
    except (OSError, TypeError):
        return True
    return re.search(r"\b(num_\w*heads|n_heads?\w*)\b", source) is not None


def adapt_attention(rules: Rules, group: Group) -> list[HeadSplit]:
    """Change what must change for the heads of these layers, and say which heads go where: one answer for each number
    of heads that they have. Layers of another kind under the same rules (a hybrid's) do not say their heads, and
    follow the others."""
    counts = Counter(each for module in group.modules if (each := figures_of(module)) is not None)
    if not rules.cuts(group.key):
        return [_split(rules, group, each, layers, whole=True) for each, layers in counts.items()]
    if not counts:
        _whole(rules, group, "its numbers of heads are not known")
        return []
    against = next((reason for each in counts if (reason := _against(rules, group, each))), None)
    whole = _gathers(rules, group)
    if whole and rules.chips > 1:
        rules.notes.append(f"{group.key}: the model's own rules gather, so each chip computes and caches all heads")
    elif against is not None:
        _whole(rules, group, against)
        whole = True
    first = next(iter(counts))
    if not whole and first.kv_heads % rules.chips:
        _share_kv_heads(rules, group, first)
    if not whole and (own := _own_parameters(group)) and group.key not in rules.now:
        why = f"{', '.join(f'`{name}`' for name in own)}: one for each query head"
        rules.set(group.key, str(Heads(first.query_heads)), why)
    return [_split(rules, group, each, layers, whole=whole) for each, layers in counts.items()]


def _gathers(rules: Rules, group: Group) -> bool:
    """Whether the model's own rules give each chip all heads: no projection in it keeps its output divided."""
    return not any(rules.now[key] in ("colwise", "packed_colwise") for key in rules.under(group.key))


def _example(group: Group) -> Any:
    """The first of the modules whose heads are known."""
    return next(each for each in group.modules if figures_of(each) is not None)


def _against(rules: Rules, group: Group, figures: Figures) -> str | None:
    """What keeps these layers from being divided by heads, or None."""
    chips = rules.chips
    module: torch.nn.Module = _example(group)
    if figures.query_heads % chips:
        return f"{figures.query_heads} query heads do not divide by {chips}"
    seen = _sees_all_heads(rules, group, figures)
    if seen is not None:
        return f"`{seen}` works on all heads at once"
    for name, parameter in _own_parameters(group).items():
        if parameter.shape[0] != figures.query_heads or names_heads(module):
            return f"`{name}` {tuple(parameter.shape)} does not go with the query heads"
    if figures.kv_heads % chips == 0:
        return None
    shared = f"{figures.kv_heads} key-value heads do not divide by {chips}"
    if chips % figures.kv_heads:
        return f"{shared}, nor {chips} by them"
    several = len({each for part in group.modules if (each := figures_of(part)) is not None}) > 1
    if several or names_heads(module) or not _kv_projections(rules, group):
        return f"{shared}, and its structure is not one whose heads can be shared"
    return None


def _sees_all_heads(rules: Rules, group: Group, figures: Figures) -> str | None:
    """A part, such as a norm, with a parameter as wide as all heads together that no rule cuts."""
    wide = {figures.query_heads * figures.key_size, figures.kv_heads * figures.key_size}
    wide -= {figures.key_size}
    module: torch.nn.Module = _example(group)
    for path, part in module.named_modules():
        if path and not isinstance(part, torch.nn.Linear):
            for name, parameter in part.named_parameters(recurse=False):
                own = rules.style(group.child(f"{path}.{name}"))
                if parameter.ndim == 1 and parameter.numel() in wide and own not in COLWISE:
                    return str(path)
    return None


def _kv_projections(rules: Rules, group: Group) -> tuple[str, ...]:
    """Names of the two plain projections whose output is the key and value heads; () where there are none such."""
    module = _example(group)
    figures = figures_of(module)
    if figures is None or not isinstance(getattr(module, "num_key_value_groups", None), int):
        return ()
    widths = {figures.kv_heads * figures.key_size, figures.kv_heads * figures.value_size}
    names = tuple(
        name
        for name, part in module.named_children()
        if type(part) is torch.nn.Linear
        and part.out_features in widths
        and rules.now.get(group.child(name)) == "colwise"
    )
    return names if len(names) == 2 else ()


def _share_kv_heads(rules: Rules, group: Group, figures: Figures) -> None:
    """Each chip gets the one key-value head of its query heads.

    The projection keeps its rule, which says that its output stays on the chip (and by which transformers sees that
    it cannot know the shape of a static cache before the first token); its parameters get rules of their own.
    """
    module = _example(group)
    per_head = rules.chips // figures.kv_heads
    why = f"{figures.kv_heads} key-value heads on {rules.chips} chips: {per_head} chips share one"
    for name in _kv_projections(rules, group):
        for parameter, _ in module.get_submodule(name).named_parameters(recurse=False):
            rules.set(group.child(f"{name}.{parameter}"), str(KeyValueHeads(figures.kv_heads)), why)
    local, whole = figures.query_heads // rules.chips, figures.query_heads // figures.kv_heads
    why = f"{local} query heads to each key-value head on a chip, not {whole}"
    rules.set(group.key, str(Heads(figures.query_heads)), why)


def _own_parameters(group: Group) -> dict[str, torch.nn.Parameter]:
    """The parameters that the attention modules themselves hold, sinks for example; some layers may have none."""
    return {name: each for module in group.modules for name, each in module.named_parameters(recurse=False)}


def _whole(rules: Rules, group: Group, reason: str) -> None:
    """Every chip computes all heads, on weights that stay divided where their sizes allow it."""
    keys = list(rules.under(group.key))
    before = dict(rules.now), dict(rules.why)
    own = {group.child(name) for name in _own_parameters(group)}
    for key in keys:
        rules.set(key, "replicate" if key in own else GATHERING.get(rules.now[key], rules.now[key]), reason)
    if rules.uneven(group.key):
        rules.now, rules.why = before
        replicate(rules, keys, reason)
    rules.notes.append(f"{group.key}: {reason}, so each chip computes and caches all heads")


def _split(rules: Rules, group: Group, figures: Figures, layers: int, *, whole: bool) -> HeadSplit:
    chips, query, kv = rules.chips, figures.query_heads, figures.kv_heads
    chunks = tuple(_chunk(chip, chips, query, kv) for chip in range(chips))
    if whole:
        chunks = (Chunk(range(query), range(kv)),) * chips
    size = figures.key_size, figures.value_size
    return HeadSplit(group.key, query, kv, chunks, whole and chips > 1, layers, *size)


def _chunk(chip: int, chips: int, query: int, kv: int) -> Chunk:
    heads = range(chip * query // chips, (chip + 1) * query // chips)
    group = query // kv
    return Chunk(heads, range(heads.start // group, (heads.stop - 1) // group + 1))
