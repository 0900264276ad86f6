"""Norms, MLPs, experts and rotary embeddings as kernels: equal tokens, fallbacks that are told, an exact undo."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    GlmConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from tests.support.models import TINY, Pair, generate_reference, left_padded, pair, prompt
from tpu_kernels import disable_tpu_kernels, emulator, enable_tpu_kernels

NEW = 5
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
CONFIGS: dict[str, tuple[Any, dict[str, int]]] = {
    "qwen3": (
        lambda: Qwen3Config(**TINY, num_hidden_layers=2),
        {"attention": 2, "rotary": 2, "norm": 9, "mlp": 2},
    ),
    "gemma2": (
        lambda: Gemma2Config(**TINY, num_hidden_layers=1, sliding_window=16, query_pre_attn_scalar=8),
        {"attention": 1, "rotary": 1, "norm": 5, "mlp": 1},
    ),
    "fused-gate-up": (
        lambda: Phi3Config(**TINY, num_hidden_layers=1),
        {"attention": 1, "rotary": 1, "norm": 3, "mlp": 1},
    ),
    "partial-rotary-by-pairs": (
        lambda: GlmConfig(**TINY, num_hidden_layers=1, partial_rotary_factor=0.5),
        {"attention": 1, "rotary": 1, "norm": 3, "mlp": 1},
    ),
    "two-layer-mlp": (
        lambda: GPT2Config(
            vocab_size=128, n_embd=64, n_layer=1, n_head=4, n_positions=512, bos_token_id=1, eos_token_id=127
        ),
        {"attention": 1, "norm": 3, "mlp": 1},
    ),
    "experts": (
        lambda: Qwen3MoeConfig(**TINY, **EXPERTS, num_hidden_layers=1, decoder_sparse_step=1),
        {"attention": 1, "rotary": 1, "norm": 5, "experts": 1},
    ),
    "experts-with-sinks": (
        lambda: GptOssConfig(
            **TINY,
            num_hidden_layers=2,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        {"attention": 2, "rotary": 2, "norm": 5, "experts": 2},
    ),
}


def generated(model: Any, ids: torch.Tensor, mask: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return out.sequences, torch.stack(out.logits, dim=1)


def assert_rows_equal(
    both: Pair, ids: torch.Tensor, mask: torch.Tensor, got: tuple[torch.Tensor, torch.Tensor]
) -> None:
    for row, length in enumerate(mask.sum(-1).tolist()):
        tokens, logits = generate_reference(both.reference, ids[row : row + 1, -length:], NEW)
        assert torch.equal(got[0][row, -length - NEW :], tokens[0]), f"row {row}"
        torch.testing.assert_close(got[1][row], logits[0], atol=1e-3, rtol=0)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_layer_by_kernel_gives_the_references_tokens(name: str, compiled: bool) -> None:
    make, swapped = CONFIGS[name]
    config: PreTrainedConfig = make()
    both = pair(config)
    ids, mask = left_padded([20, 33, 5])
    with enable_tpu_kernels(both.model, policy="always", prefill_chunk=16) as report:
        got = generated(both.model, ids, mask, disable_compile=not compiled)
        assert Counter(entry.op for entry in report.swapped) == swapped and not report.kept
        assert all(call.is_kernel for call in report.calls), report
        assert {call.path for call in report.calls} == {entry.path for entry in report.swapped}
        before = emulator.compilations()
        generated(both.model, ids, mask, disable_compile=not compiled)
        assert emulator.compilations() == before
    assert_rows_equal(both, ids, mask, got)


def test_auto_leaves_to_xla_what_it_wins_and_says_so(qwen3: Pair) -> None:
    ids = prompt(20)
    with enable_tpu_kernels(qwen3.model, prefill_chunk=16) as report:
        got = generated(qwen3.model, ids, torch.ones_like(ids))
        compiled = {(call.op, call.chosen) for call in report.calls}
        left = [call for call in report.calls if call.left_to_xla]
        assert {call.op for call in left} == {"norm", "mlp", "rotary"}
        assert all("eager" in call.reason and call.steps > 0 for call in left)
        assert "left to XLA: 9 norm layers" in str(report)
        generated(qwen3.model, ids, torch.ones_like(ids), disable_compile=True)
        eager = {(call.op, call.chosen) for call in report.calls} - compiled
    assert {op for op, _ in eager} == {"norm", "mlp", "rotary"}
    assert all(chosen.startswith(f"{op}/") for op, chosen in eager), "run eagerly, their kernels are preferred"
    assert_rows_equal(qwen3, ids, torch.ones_like(ids), got)


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    return {path: {name: id(value) for name, value in vars(module).items()} for path, module in model.named_modules()}


def test_undo_restores_every_module(qwen3: Pair) -> None:
    before = state_of(qwen3.model)
    report = enable_tpu_kernels(qwen3.model, policy="always")
    assert state_of(qwen3.model) != before
    report.undo()
    assert state_of(qwen3.model) == before


def test_a_copy_of_an_enabled_model_is_its_own(qwen3: Pair) -> None:
    ids = prompt(6)
    report = enable_tpu_kernels(qwen3.model, policy="always", prefill_chunk=16)
    copied = copy.deepcopy(qwen3.model)
    assert disable_tpu_kernels(qwen3.model)
    for module in copied.modules():
        assert getattr(vars(module).get("forward"), "__self__", module) is module
    got = generated(copied, ids, torch.ones_like(ids), disable_compile=True)
    assert not report.calls, "the copy's calls are not the original's"
    assert disable_tpu_kernels(copied) and not any("forward" in vars(module) for module in copied.modules())
    assert_rows_equal(qwen3, ids, torch.ones_like(ids), got)


def test_training_and_gradients_run_the_models_own_code(qwen3: Pair) -> None:
    ids = prompt(6).to("tpu")
    with enable_tpu_kernels(qwen3.model, policy="always") as report:
        qwen3.model(ids).logits.sum().backward()
        weight = qwen3.model.model.layers[0].input_layernorm.weight
        assert weight.grad is not None and bool(weight.grad.abs().sum() > 0)
        qwen3.model.zero_grad()
        assert {call.op for call in report.calls} == {"attention", "norm", "mlp", "rotary"}
        assert all(not call.is_kernel and "gradients are wanted" in call.reason for call in report.calls)


def test_an_adapter_that_comes_later_is_heard(qwen3: Pair) -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    ids = prompt(6).to("tpu")
    mlp = qwen3.model.model.layers[0].mlp
    plain = mlp.up_proj
    adapted = Doubled(plain.in_features, plain.out_features, bias=False, device="tpu")
    adapted.weight = plain.weight
    with torch.no_grad():
        mlp.up_proj = adapted
        want = qwen3.model(ids).logits.cpu()
        mlp.up_proj = plain
        other = qwen3.model(ids).logits.cpu()
        with enable_tpu_kernels(qwen3.model, policy="always") as report:
            mlp.up_proj = adapted
            got = qwen3.model(ids).logits.cpu()
            mlp.up_proj = plain
    assert float((want - other).abs().max()) > 1e-2
    torch.testing.assert_close(got, want, atol=1e-3, rtol=0)
    reasons = [call.reason for call in report.calls if call.path == "model.layers.0.mlp"]
    assert reasons == ["a part was replaced: `up_proj` is now a Doubled"]


def test_a_hook_on_a_part_is_heard(qwen3: Pair) -> None:
    ids, seen = prompt(6).to("tpu"), []
    handle = qwen3.model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad(), enable_tpu_kernels(qwen3.model, policy="always") as report:
        qwen3.model(ids)
    handle.remove()
    assert seen == [1]
    reasons = [call.reason for call in report.calls if call.path == "model.layers.0.mlp"]
    assert reasons == ["a part was replaced: `down_proj` has a forward or a hook of its own"]


def test_another_dtype_of_weights_falls_back() -> None:
    both = pair(LlamaConfig(**TINY, num_hidden_layers=1))
    norm = both.model.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.to(torch.bfloat16))
    with torch.no_grad(), enable_tpu_kernels(both.model, policy="always") as report:
        both.model(prompt(4).to("tpu"))
    reasons = {call.reason for call in report.calls if call.path == "model.norm"}
    assert reasons == {"its weights are torch.bfloat16, the input is torch.float32"}


def test_include_and_exclude_by_kind(qwen3: Pair) -> None:
    with enable_tpu_kernels(qwen3.model, policy="always", include=["*norm*", "*mlp"], exclude=["*q_norm"]) as report:
        assert Counter(entry.op for entry in report.swapped) == {"norm": 7, "mlp": 2}
        out = qwen3.model.generate(prompt(9), max_new_tokens=3, do_sample=False)
        assert out.shape == (1, 12)


def test_a_hook_on_an_activation_and_another_activation_are_heard(qwen3: Pair) -> None:
    mlp, x = qwen3.model.model.layers[0].mlp, torch.randn(1, 3, TINY["hidden_size"]).to("tpu")
    with torch.no_grad(), enable_tpu_kernels(qwen3.model, policy="always") as report:
        plain = mlp(x).cpu()
        handle = mlp.act_fn.register_forward_hook(lambda _module, _inputs, output: output * 0)
        assert float(plain.abs().max()) > 1e-3 and float(mlp(x).cpu().abs().max()) == 0
        handle.remove()
        before, mlp.act_fn = mlp.act_fn, torch.nn.ReLU()
        assert not torch.allclose(mlp(x).cpu(), plain)
        mlp.act_fn = before
        torch.testing.assert_close(mlp(x).cpu(), plain)
    reasons = [call.reason for call in report.calls if not call.is_kernel]
    assert reasons == [
        "a part was replaced: `act_fn` has a forward or a hook of its own",
        "a part was replaced: `act_fn` is now a ReLU",
    ]


def test_a_part_without_a_weight_and_a_call_without_rows_fall_back_for_that_call(qwen3: Pair) -> None:
    mlp, x = qwen3.model.model.layers[0].mlp, torch.randn(1, 3, TINY["hidden_size"]).to("tpu")
    with torch.no_grad(), enable_tpu_kernels(qwen3.model, policy="always", on_reject="error") as report:
        plain = mlp(x).cpu()
        assert mlp(x[:, :0]).shape == (1, 0, TINY["hidden_size"])
        before, mlp.gate_proj = mlp.gate_proj, torch.nn.Sequential(mlp.gate_proj)
        torch.testing.assert_close(mlp(x).cpu(), plain, atol=1e-5, rtol=0)
        mlp.gate_proj = before
        assert report.enabled and not report.notes
        assert {call.reason for call in report.calls} == {
            "",
            "a part was replaced: `gate_proj` is now a Sequential",
            f"an input of the shape [1, 0, {TINY['hidden_size']}]",
        }


def test_a_module_that_is_copied_out_is_a_plain_one(qwen3: Pair) -> None:
    x = torch.randn(1, 3, TINY["hidden_size"]).to("tpu")
    with torch.no_grad(), enable_tpu_kernels(qwen3.model, policy="always") as report:
        copied = copy.deepcopy(qwen3.model.model.norm)
        torch.testing.assert_close(copied(x).cpu(), qwen3.model.model.norm(x).cpu(), atol=1e-5, rtol=0)
        assert sum(call.steps for call in report.calls) == 1, "the copy's call is not the model's"


def test_what_was_set_over_a_swapped_forward_outlives_undo(qwen3: Pair) -> None:
    norm, x = qwen3.model.model.norm, torch.randn(1, 3, TINY["hidden_size"]).to("tpu")
    report = enable_tpu_kernels(qwen3.model, policy="always")
    ours = norm.forward
    norm.forward = lambda hidden_states: 2 * ours(hidden_states)
    with torch.no_grad():
        doubled = norm(x).cpu()
        report.undo()
        torch.testing.assert_close(norm(x).cpu(), doubled, atol=1e-5, rtol=0)
    del norm.forward
