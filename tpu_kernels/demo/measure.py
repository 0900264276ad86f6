"""Let a model continue the prompts, with tpu-kernels and plain, and count what was compiled for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from tpu_kernels import emulator
from tpu_kernels.apply import enable_tpu_kernels
from tpu_kernels.demo.findings import Findings, Generated


@dataclass(frozen=True)
class Counter:
    """A way to count compilations: `read()` gives the total so far, `unit` says what is counted."""

    unit: str
    read: Callable[[], int]


def compilation_counter() -> Counter:
    """XLA programs where the TPU is emulated; on a real one, which counts none, graphs of torch.compile."""
    if emulator.is_active():
        return Counter("XLA compilations", emulator.compilations)
    from torch._dynamo.utils import counters

    return Counter("compiled graphs", lambda: int(counters["stats"]["unique_graphs"]))


def generate_one(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    new_tokens: int,
    inputs_on_device: bool,
) -> Generated:
    """Continue a prompt greedily by up to `new_tokens` tokens, with a static cache.

    With `inputs_on_device` the ids are moved to the model's device first, as plain transformers asks; without,
    they stay on the CPU.
    """
    counter = compilation_counter()
    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=False,
        cache_implementation="static",
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    generate: Callable[..., torch.Tensor] = model.generate
    inputs: Any = tokenizer(prompt, return_tensors="pt")
    if inputs_on_device:
        inputs = inputs.to(model.device)
    before, started = counter.read(), time.perf_counter()
    ids = generate(**inputs, generation_config=settings)[0].tolist()
    compilations, seconds = counter.read() - before, time.perf_counter() - started
    length = inputs["input_ids"].shape[1]
    text = str(tokenizer.decode(ids[length:], skip_special_tokens=True))
    return Generated(prompt, length, tuple(ids[length:]), text, compilations, seconds)


def measure(
    model_path: str,
    prompts: Sequence[str],
    *,
    new_tokens: int,
    say: Callable[[str], None],
    stage: Callable[[str], None],
) -> Findings:
    """Load the model twice in float32 on the TPU; generate with tpu-kernels first, then plain.

    Plain comes second, so what both need compiled is on our account, and on a model of its own. `say` is given
    each intermediate result as a line of text; `stage` is called with the name of each stage as it begins:
    `stages(prompts)` times.
    """
    if not emulator.is_active():
        torch.set_float32_matmul_precision("highest")  # a TPU multiplies float32 as bfloat16 otherwise
    tokenizer = AutoTokenizer.from_pretrained(model_path)

    def load() -> PreTrainedModel:
        stage("loading the model")
        model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype="float32", device_map="tpu")
        return model

    def run(name: str, model: PreTrainedModel, inputs_on_device: bool) -> tuple[Generated, ...]:
        results = []
        for prompt in prompts:
            stage(f"generating, {name}")
            done = generate_one(model, tokenizer, prompt, new_tokens=new_tokens, inputs_on_device=inputs_on_device)
            say(f"{name}: {done.prompt_tokens} prompt tokens, {done.compilations} {unit}, {done.seconds:.1f} s")
            results.append(done)
        return tuple(results)

    unit = compilation_counter().unit
    model = load()
    say(f"{type(model).__name__}, {model.num_parameters():,} weights, float32, on {model.device}")
    report = enable_tpu_kernels(model)
    ours = run("with tpu-kernels", model, inputs_on_device=False)
    plain = run("plain transformers", load(), inputs_on_device=True)
    fallbacks = tuple(
        f"{call.path}, {call.phase}: {call.chosen} ({call.reason})"
        for call in report.calls
        if not (call.is_kernel or call.left_to_xla)
    )
    return Findings(str(report), fallbacks, unit, ours, plain)


def stages(prompts: Sequence[str]) -> int:
    """How often `measure` calls `stage`."""
    return 2 + 2 * len(prompts)
