"""Embeddings, the head, and MLPs."""

from __future__ import annotations

from typing import Any

import torch

from tpu_kernels.plan.mlps import projections
from tpu_kernels.plan.tp.rules import GATHERING, Rules, replicate, turn
from tpu_kernels.plan.tp.structure import Group, Mlp, wildcard
from tpu_kernels.plan.tp.styles import COLWISE


def adapt_mlps(rules: Rules, *, add: bool) -> None:
    """Cut fused projections one by one, and where the intermediate size does not divide, cut the hidden size.

    `add`: give rules to MLPs that the model's plan does not know.
    """
    for group in rules.structure.mlps():
        if not any(True for _ in rules.under(group.key)):
            if add and rules.structure.in_decoder(group.key) and (mlp := rules.structure.mlp(group)) is not None:
                _add(rules, group, mlp)
        elif rules.cuts(group.key):
            _known(rules, group)
        uneven = rules.uneven(group.key)
        if uneven:
            keys = [each for each in rules.under(group.key) if each != group.key]
            why = f"{_sizes(uneven[0].shape)} does not divide by {rules.chips}"
            if turn(rules, keys, why):
                rules.notes.append(f"{group.key}: {why}, so its hidden size is cut instead, with more collectives")
            else:
                replicate(rules, keys, why)
                rules.notes.append(f"{group.key}: {why}, so each chip holds the whole MLP")


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _add(rules: Rules, group: Group, mlp: Mlp) -> None:
    parts = [group.modules[0].get_submodule(name) for name in (mlp.gate, mlp.down)]
    if not all(isinstance(part, torch.nn.Linear) for part in parts):
        return
    why = "the model has no plan of its own"
    fused = mlp.up is None and not mlp.two_layer
    first = "colwise" if not fused else "colwise_gather_output" if mlp.fused_bias else "packed_colwise"
    for name in filter(None, (mlp.gate, mlp.up)):
        rules.set(group.child(name), first, why)
    rules.set(group.child(mlp.down), "rowwise_split_input" if first == "colwise_gather_output" else "rowwise", why)


def _known(rules: Rules, group: Group) -> None:
    """What an MLP of the model's plan computes decides how it may be cut.

    One with gate and up in one projection: each of both, which gathers nothing. One that is not known, and might look
    at its whole intermediate size at once: its weights are cut, but every chip computes all of it.
    """
    mlp = rules.structure.mlp(group)
    keys = [key for key in rules.under(group.key) if key in rules.structure.groups and key != group.key]
    if mlp is None:
        divided = [key for key in keys if rules.now[key] in ("colwise", "packed_colwise")]
        if divided and all(projections(module) is not None for module in group.modules):
            why = "what it computes is not known, so nothing in it stays divided"
            for key in keys:
                rules.set(key, GATHERING.get(rules.now[key], rules.now[key]), why)
            rules.notes.append(f"{group.key}: {why}")
        return
    gate, down = group.child(mlp.gate), group.child(mlp.down)
    if mlp.two_layer or mlp.up is not None or rules.now.get(gate) not in COLWISE:
        return
    if mlp.fused_bias or rules.structure.by_key[f"{down}.weight"].shape[1] % rules.chips:
        why = "gate and up in one: a chip would get a part of one of them"
        rules.set(gate, "colwise_gather_output", why)
        rules.set(down, "rowwise_split_input", why)
        return
    why = "gate and up are cut one by one, so that each chip has its part of both and nothing is gathered"
    rules.set(gate, "packed_colwise", why)
    rules.set(down, "rowwise", why)


def adapt_vocabulary(rules: Rules, *, add: bool) -> None:
    """Embeddings and head: a vocabulary that does not divide, and one tensor that both share."""
    embedding, head = _key_of(rules, "get_input_embeddings"), _key_of(rules, "get_output_embeddings")
    if embedding is None:
        return
    if add and _is_embedding(rules, embedding):
        rules.set(embedding, "embedding_rowwise", "the model has no plan of its own")
    tied = _is_tied(rules, embedding, head)
    weights = [each for each in (embedding, head) if each is not None and f"{each}.weight" in rules.structure.by_key]
    if any(True for _ in rules.structure.groups[embedding].modules[0].children()) and rules.cuts(embedding):
        why = "it does more than look up, and would see a part of each sum"
        replicate(rules, weights if tied else [embedding], why)
    if tied and head is not None:
        _same_cut(rules, embedding, head)
    uneven = [each for each in weights if rules.uneven(each)]
    if not uneven:
        return
    parameter = rules.structure.by_key[f"{uneven[0]}.weight"]
    why = f"a vocabulary of {parameter.shape[0]} does not divide by {rules.chips}"
    keys = [each for each in (weights if tied else uneven) if each in rules.now]
    if parameter.shape[1] % rules.chips == 0:
        for key in keys:
            rules.set(key, "embedding_colwise" if key == embedding else "rowwise_split_input", why)
        rules.notes.append(f"{' and '.join(keys)}: {why}, so the hidden size is cut; the head's outputs are summed")
    else:
        replicate(rules, keys, why)
        rules.notes.append(f"{' and '.join(keys)}: {why}, so each chip holds the whole")


def _same_cut(rules: Rules, embedding: str, head: str) -> None:
    """One tensor is cut in one way: the head's rule and the embedding's must agree."""
    parts = [rules.structure.by_key[f"{each}.weight"] for each in (embedding, head)]
    cuts = [rules.cut(each) for each in parts]
    if cuts[0] == cuts[1]:
        return
    why = "the embedding and the head are one tensor, which is cut in one way"
    if cuts[0] is not None and cuts[0][0] == 1:
        rules.set(head, "rowwise_split_input", why)
    elif _is_embedding(rules, embedding):
        rules.set(embedding, "embedding_rowwise", why)
        rules.set(head, "colwise_gather_output", why)
    else:
        rules.set(head, "replicate", why)


def _is_embedding(rules: Rules, key: str) -> bool:
    return isinstance(rules.structure.groups[key].modules[0], torch.nn.Embedding)


def _is_tied(rules: Rules, embedding: str, head: str | None) -> bool:
    names = {f"{embedding}.weight", f"{head}.weight"}
    return any({target, source} == names for target, source in rules.structure.tied.items())


def _key_of(rules: Rules, getter: str) -> str | None:
    """The key of the module that the model names as its embedding or its head."""
    try:
        wanted: Any = getattr(rules.structure.model, getter)()
    except (AttributeError, NotImplementedError):
        return None
    return next((key for key, group in rules.structure.groups.items() if wanted in group.modules), None)


def adapt_rest(rules: Rules) -> None:
    """What is left that does not divide: each chip holds the whole of the module it is in."""
    for parameter in rules.uneven():
        key = wildcard(parameter.path)
        module = key.rpartition(".")[0]
        owner = module.rpartition(".")[0] or module
        if rules.uneven(module) or rules.local(parameter) is None:
            why = f"{_sizes(parameter.shape)} does not divide by {rules.chips}"
            replicate(rules, list(rules.under(owner)), why)
            rules.notes.append(f"{owner}: {why}, so each chip holds the whole")
