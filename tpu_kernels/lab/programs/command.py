"""What `tpu-kernels compile` does: every case of a kernel, or the steps of a model, through libtpu for each target."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tpu_kernels.errors import CacheTooLargeError, CompileError, explain
from tpu_kernels.lab.aot import AotResult, compile_jobs, op_jobs
from tpu_kernels.lab.memory import kernel_vmem
from tpu_kernels.lab.programs.capturing import capture_model
from tpu_kernels.lab.programs.compiling import CompiledProgram, compile_programs
from tpu_kernels.lab.programs.lines import CompileLine
from tpu_kernels.lab.programs.program import Program
from tpu_kernels.lab.programs.requests import Flow, ModelCase, Step
from tpu_kernels.lab.programs.subjects import KernelSubject, ModelSubject, subject_of
from tpu_kernels.lab.targets import Target, target_of
from tpu_kernels.ops.case import OpCase
from tpu_kernels.ops.catalog import cases_named, cases_of, resized
from tpu_kernels.specs import KernelSpec

DEFAULT_TARGETS: Final = ("v5e:1x1", "v6e:1x1", "tpu7x:2x2x1")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """The options of the command. Those of kernels and of models do not touch each other."""

    targets: tuple[str, ...] = DEFAULT_TARGETS
    dtype: str = "bfloat16"
    batch: int | None = None
    """None is what a kernel's case says, and 1 for a model."""
    max_len: int | None = None
    """None is what a kernel's case says, and 4096 for a model."""
    cases: tuple[str, ...] = ()
    """Of a kernel, or all cases of a model in the list."""
    flows: tuple[Flow, ...] = ("tpu-kernels",)
    steps: tuple[Step, ...] = ("prefill", "decode")
    tp_size: int = 1
    """Of a model: chips that it is divided over."""


def compile_lines(subject: str, request: Request, say: Say = lambda _: None) -> Iterator[CompileLine]:
    """A line for every case or step and target, as they are done; `say` is told what runs.

    Raises ValueError for targets and cases that do not exist, and what `subject_of` and the captures raise.
    """
    targets = [target_of(name, request.tp_size) for name in request.targets]
    match subject_of(subject):
        case KernelSubject() as kernel:
            return _kernel_lines(kernel, targets, request, say)
        case ModelSubject(name=name):
            return _model_lines(name, targets, request, say)


def _kernel_lines(
    kernel: KernelSubject, targets: Sequence[Target], request: Request, say: Say
) -> Iterator[CompileLine]:
    cases = [resized(case, batch=request.batch, max_len=request.max_len) for case in _cases(kernel, request)]
    for target in targets:
        base = CompileLine(kernel.name, "", target, request.dtype)
        against = {case.name: _not_covered(kernel.spec, case, request.dtype, target) for case in cases}
        covered = [case for case in cases if not against[case.name]]
        tuning = kernel.spec.tuning(target.chip.name) if kernel.spec else {}
        jobs = op_jobs(covered, [request.dtype], kernel=kernel.source, **tuning)
        say(f"compiling {len(jobs)} cases of {kernel.name} for {target.topology}")
        results = dict(zip((case.name for case in covered), compile_jobs(jobs, target.topology), strict=True))
        for case in cases:
            line = replace(base, case=case.name)
            if case.name in results:
                yield _of_kernel(line, results[case.name])
            else:
                yield replace(line, status="not covered", message=against[case.name])


def _cases(kernel: KernelSubject, request: Request) -> Sequence[OpCase]:
    """Those that were asked for, of the functions that the kernel has."""
    if request.cases:
        return cases_named(kernel.op, request.cases, kernel.function)
    return cases_of(kernel.op, kernel.function)


def _not_covered(spec: KernelSpec | None, case: OpCase, dtype: str, target: Target) -> str:
    """Why the spec keeps such a call from the kernel, "" if it does not."""
    if spec is None:
        return ""
    from tpu_kernels.plan.match import LayerFacts, rejections  # it loads torch

    # Of a case: `layer_sizes`, where specs have other names for its sizes, and the `features` that it needs.
    sizes: Mapping[str, int] = getattr(case, "layer_sizes", case.sizes)
    features: frozenset[str] = getattr(case, "features", frozenset())
    # No class: a case is a call, and any layer could make it.
    facts = LayerFacts((spec.match.classes or ("",))[0], dtype, sizes, features)
    return "; ".join(str(rejection) for rejection in rejections(spec, facts, target.chip.name))


def _of_kernel(line: CompileLine, result: AotResult) -> CompileLine:
    if result.error is not None:
        return replace(line, status="failed", message=result.error, seconds=result.seconds)
    return replace(line, seconds=result.seconds, memory=result.memory, vmem=result.vmem_bytes)


def _model_lines(model: str, targets: Sequence[Target], request: Request, say: Say) -> Iterator[CompileLine]:
    for flow in request.flows:
        wanted = ModelCase(
            model,
            flow,
            request.steps,
            request.batch or 1,
            request.max_len or 4096,
            request.dtype,
            tp_size=request.tp_size,
        )
        captured: dict[str, list[Program]] = {}
        for target in targets:
            # Kernels and their tuning are chosen for a generation; plain programs are the same for all.
            generation = target.chip.name if flow == "tpu-kernels" else "any"
            base = CompileLine(model, "", target, request.dtype, flow)
            try:
                if generation not in captured:
                    say(f"capturing {' and '.join(request.steps)} of {model}, flow {flow}, for {target.chip.name}")
                    captured[generation] = capture_model(replace(wanted, generation=target.chip.name))
            except CacheTooLargeError as error:
                yield from _refused(base, request, error)
                continue
            say(f"compiling {len(captured[generation])} programs of {model}, flow {flow}, for {target.topology}")
            for result in compile_programs(captured[generation], target.topology):
                yield _of_program(replace(base, case=result.program.name), result)


def _refused(line: CompileLine, request: Request, error: Exception) -> Iterator[CompileLine]:
    """Lines for a model that tpu_kernels itself refuses on that chip, before any program is made."""
    what, *rest = (" ".join(part.split()) for part in str(error).splitlines())
    told = (part for part in rest if part.startswith(("Needs:", "Got:")))
    for step in request.steps:
        yield replace(line, case=step, status="failed", message=" ".join([what, *told]), refused=True)


def _of_program(line: CompileLine, result: CompiledProgram) -> CompileLine:
    line = replace(line, seconds=result.seconds, note=result.program.note)
    if result.error is not None:
        return replace(line, status="failed", message=result.error)
    return replace(line, memory=result.memory, vmem=kernel_vmem(result.hlo))


def refuse_if_nothing(lines: Sequence[CompileLine]) -> None:
    """Raise CompileError where nothing was compiled because the spec covers none of the cases."""
    if lines and all(line.status == "not covered" for line in lines):
        raise CompileError(explain("The spec covers none of these cases.", got=lines[0].message))
