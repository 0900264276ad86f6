"""Load a model, enable it, and let it continue prompts. Torch is imported inside, after an emulator has started."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tpu_kernels import emulator
from tpu_kernels.errors import EmulatorError, ModelStructureError, SpecError, explain
from tpu_kernels.registry import load_registry

DType = Literal["auto", "bfloat16", "float32"]


@dataclass(frozen=True)
class GenerateOptions:
    """What `tpu-kernels generate` was asked for."""

    model: str
    prompts: Sequence[str]
    max_new_tokens: int = 64
    dtype: DType = "auto"
    sample: bool = False
    chat: bool = False
    warm_up: bool = False
    specs: Sequence[str] = ()
    max_cache_len: int | None = None
    report: bool = False
    emulate: bool = False
    exclude: Sequence[str] = field(default=())


def run_generate(options: GenerateOptions) -> None:
    """Print the continuation of each prompt on stdout, and on stderr what was compiled and how long it took.

    One prompt is printed as it grows; several make a left-padded batch and are printed at the end. Raises
    EmulatorError where there is no TPU and `emulate` was not asked for, ModelStructureError for a model that is not
    found, SpecError for a mistake in the options, and whatever enabling and generating raise.
    """
    load_registry(list(options.specs))  # a mistake in a spec shows before the weights are read
    if not all(options.prompts):
        raise SpecError(explain("a prompt is empty.", needs="some text in every --prompt"))
    _start_device(options.emulate)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

    from tpu_kernels.apply import enable_tpu_kernels

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(options.model, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype, device_map="tpu")
    except (OSError, ValueError) as error:
        raise ModelStructureError(
            explain(
                f"{options.model} cannot be loaded.",
                needs="a Hub id or a folder, with config, weights and tokenizer of a causal language model",
                got=str(error).strip().splitlines()[0],
                next_step="check the name; offline, the Hub id must be in the local cache.",
            )
        ) from error
    if options.chat and not tokenizer.chat_template:
        raise SpecError(explain(f"{options.model} has no chat template.", next_step="leave --chat out."))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    report = enable_tpu_kernels(
        model, list(options.specs), exclude=list(options.exclude) or None, max_cache_len=options.max_cache_len
    )
    inputs = tokenizer(
        [_text(tokenizer, prompt, options.chat) for prompt in options.prompts], return_tensors="pt", padding=True
    )
    rows, length = inputs["input_ids"].shape
    if options.warm_up:
        report.warm_up([rows], [length + options.max_new_tokens])
    started = time.monotonic()
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if rows == 1 else None
    with torch.no_grad():
        output = model.generate(
            **inputs,
            max_new_tokens=options.max_new_tokens,
            do_sample=options.sample,
            streamer=streamer,
            pad_token_id=tokenizer.pad_token_id,
        )
    seconds = time.monotonic() - started
    if rows > 1:
        for text in tokenizer.batch_decode(output, skip_special_tokens=True):
            print(text)
    new = output.shape[1] - length
    print(
        f"{rows} x {new} new tokens in {seconds:.1f} s" + " (compilation included)" * (not options.warm_up),
        file=sys.stderr,
    )
    if options.report:
        print(report, file=sys.stderr)


def _start_device(emulate: bool) -> None:
    if emulate:
        emulator.start()
    elif not emulator.is_active() and not emulator.find_tpu_chips():
        raise EmulatorError(
            explain(
                "there is no TPU on this machine.",
                next_step="add --emulate to run on the emulated TPU: right tokens, at a laptop's pace.",
            )
        )


def _text(tokenizer: Any, prompt: str, chat: bool) -> str:
    if not chat:
        return prompt
    messages = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
