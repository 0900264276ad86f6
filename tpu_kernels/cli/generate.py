"""`tpu-kernels generate`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer


def generate(
    model: Annotated[str, typer.Argument(help="Hub id or folder.", show_default=False)],
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="Text to continue; several make a batch.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length of the continuation, in tokens.")] = 64,
    warm_up: Annotated[bool, typer.Option("--warm-up", help="Compile first, under a progress bar.")] = False,
    dtype: Annotated[Literal["auto", "bfloat16", "float32"], typer.Option(help="Of the weights.")] = "auto",
    sample: Annotated[bool, typer.Option("--sample", help="Sample instead of taking the best token.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Put each prompt into the model's chat template.")] = False,
    spec: Annotated[
        list[str] | None, typer.Option("--spec", help="Further spec file or folder; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="No modules of this path pattern; repeatable.")
    ] = None,
    max_cache_len: Annotated[int | None, typer.Option(min=1, help="One cache length for all calls.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Print the report on stderr.")] = False,
    emulate: Annotated[bool, typer.Option("--emulate", help="Run on the emulated TPU.")] = False,
) -> None:
    """Continue prompts with a model on the TPU, its layers swapped for kernels."""
    from tpu_kernels.launch.generate import GenerateOptions, run_generate

    run_generate(
        GenerateOptions(
            model=model,
            prompts=prompt,
            max_new_tokens=max_new_tokens,
            dtype=dtype,
            sample=sample,
            chat=chat,
            warm_up=warm_up,
            specs=spec or (),
            max_cache_len=max_cache_len,
            report=report,
            emulate=emulate,
            exclude=exclude or (),
        )
    )
