"""`tpu-kernels compile`."""

from __future__ import annotations

import json
import os
from typing import Annotated, Literal

import typer


def compile(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SPEC|KERNEL|MODEL",
            help="Name or YAML file of a kernel's spec; a kernel repository or its JAX file; or a model: Hub id,"
            " folder, path of a config.json.",
            show_default=False,
        ),
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            help="TPUs to compile for, by generation or topology, separated by commas. "
            "Default: v5e:1x1,v6e:1x1,tpu7x:2x2x1, or as large as --tp needs.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option(help="Of keys, values and weights.")] = "bfloat16",
    batch: Annotated[int | None, typer.Option(min=1, help="Rows. Default: as in the case; 1 for a model.")] = None,
    max_len: Annotated[
        int | None, typer.Option(min=1, help="Length of the cache. Default: as in the case; 4096 for a model.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Of a kernel: a case, or all cases of a model in the list; repeatable.")
    ] = None,
    flow: Annotated[
        Literal["tpu-kernels", "plain", "both"], typer.Option(help="Of a model: with kernels, or transformers' own.")
    ] = "tpu-kernels",
    program: Annotated[
        Literal["decode", "prefill", "both"],
        typer.Option(help="Of a model: the decode step, a prefill chunk, or both."),
    ] = "both",
    tp: Annotated[int, typer.Option(min=1, help="Of a model: chips that it is divided over; rank 0's programs.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compile a kernel's cases or a model's programs with the real TPU compiler; needs no TPU.

    Exit code 1 if something fails or does not fit the chip.
    """
    # Compiler and emulator run in processes of their own; this one must not take a TPU.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from rich.console import Console

    from tpu_kernels.errors import TpuKernelsError
    from tpu_kernels.lab.programs.command import DEFAULT_TARGETS, Request, compile_lines, refuse_if_nothing
    from tpu_kernels.lab.programs.requests import FLOWS, STEPS
    from tpu_kernels.lab.programs.table import show_lines
    from tpu_kernels.lab.targets import GENERATIONS

    targets = DEFAULT_TARGETS if tp == 1 else GENERATIONS
    request = Request(
        targets=tuple(name.strip() for name in topology.split(",") if name.strip()) if topology else targets,
        dtype=dtype,
        batch=batch,
        max_len=max_len,
        cases=tuple(case or ()),
        flows=FLOWS if flow == "both" else (flow,),
        steps=STEPS if program == "both" else (program,),
        tp_size=tp,
    )
    try:
        with Console(stderr=True).status("starting the TPU compiler") as status:
            compiled = compile_lines(subject, request, status.update)
            lines = list(compiled) if as_json else show_lines(compiled, Console(highlight=False))
        refuse_if_nothing(lines)
    except TpuKernelsError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        print(json.dumps([line.as_dict() for line in lines], indent=2))
    raise typer.Exit(1 if any(line.failed for line in lines) else 0)
