"""`tpu-kernels plan`."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer


def plan(
    model: Annotated[str, typer.Argument(help="Hub id, folder, or path of a config.json.", show_default=False)],
    spec: Annotated[
        list[str] | None, typer.Option("--spec", help="Further spec file or folder; may be repeated.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", help="Only modules of this path pattern; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", help="No modules of this path pattern; repeatable.")
    ] = None,
    policy: Annotated[
        Literal["auto", "always"],
        typer.Option(help="auto: where the kernel is right and not known to lose; always: where it is right."),
    ] = "auto",
    tp: Annotated[
        int | None,
        typer.Option("--tp", min=1, help="Show instead how the model is divided over this many chips, and if it fits."),
    ] = None,
    cache_len: Annotated[int, typer.Option(min=1, help="With --tp: positions of the key-value cache.")] = 4096,
    batch: Annotated[int, typer.Option(min=1, help="With --tp: rows of the key-value cache.")] = 1,
) -> None:
    """Show which kernel would replace which layer of a model, and the reasons against; changes nothing."""
    # Planning needs no device, and torch_tpu would take the TPU when torch is imported.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from tpu_kernels.plan import plan_tensor_parallel, plan_tpu_kernels

    if tp is not None:
        print(plan_tensor_parallel(model, tp, cache_len=cache_len, batch_size=batch))
        return
    print(plan_tpu_kernels(model, spec, include=include, exclude=exclude, policy=policy))
