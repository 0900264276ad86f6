"""`tpu-kernels plan`."""

from __future__ import annotations

from typing import Annotated

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
    policy: Annotated[str, typer.Option(help="auto: where it is right and not known to lose; always.")] = "auto",
) -> None:
    """Show which kernel would replace which layer of a model, and the reasons against; changes nothing."""
    from tpu_kernels.plan import plan_tpu_kernels

    if policy not in ("auto", "always"):
        raise typer.BadParameter("use auto or always.", param_hint="--policy")
    print(plan_tpu_kernels(model, spec, include=include, exclude=exclude, policy=policy))
