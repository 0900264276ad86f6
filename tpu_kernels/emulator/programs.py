"""Look into a StableHLO program, and make it one that XLA's CPU compiler can do.

A program reaches PJRT as a StableHLO portable artifact. What only a TPU can do stands in it as a
`composite`: an op under a name that the TPU compiler knows (`chlo.scan` for cumsum and its kin,
`chlo.ragged_dot` for grouped matmuls), together with a function that does the same in plain ops. A
real TPU takes the name; here the composite is replaced by a call of that function. So every way
of reaching such an op, eager or compiled, gets the same other lowering.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# On `scan` XLA:CPU's emitter aborts the process; for `ragged-dot` it has no emitter.
UNSUPPORTED_COMPOSITES = ("chlo.scan", "chlo.ragged_dot")

_MOSAIC = "tpu_custom_call"

# torch_tpu writes a newer StableHLO than jaxlib reads. Where the two versions of an op differ only
# in an attribute that is absent by default, the older name reads the same.
_READ_AS = {b"custom_call_v2\0": b"custom_call_v1\0"}


def for_cpu(program: bytes) -> bytes:
    """`program`, a portable artifact, with every composite that XLA:CPU cannot do decomposed.

    A program without such a composite comes back as it is. Raises RuntimeError naming the op where
    the program cannot be rewritten.
    """
    names = [name for name in UNSUPPORTED_COMPOSITES if _mentions(program, name)]
    if not names:
        return program
    try:
        return _decompose(program, frozenset(names))
    except Exception as error:
        raise RuntimeError(
            f"this program uses {' and '.join(names)}, which XLA's CPU compiler cannot do, and it could not "
            f"be rewritten into plain ops: {error}"
        ) from error


def refusal(program: bytes) -> str | None:
    """Why no CPU can run `program`, or None if nothing is known against it."""
    if not _mentions(program, _MOSAIC):
        return None
    return (
        f"the emulated TPU cannot run a Mosaic kernel (custom call `{_MOSAIC}`). A Pallas kernel must be "
        "traced in interpret mode, which the emulator switches on "
        "(jax.experimental.pallas.tpu.set_tpu_interpret_mode(True)); torch_tpu's own flash attention must be "
        "off (torch.backends.cuda.enable_flash_sdp(False), which the emulator does at its start)"
    )


@contextmanager
def readable(program: bytes) -> Iterator[Any]:
    """The MLIR module of a portable artifact, as an object of jaxlib's, in a context of its own.

    Raises RuntimeError if jaxlib cannot read it.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    for newer, older in _READ_AS.items():
        program = program.replace(newer, older)
    context = ir.Context()
    stablehlo.register_dialect(context)
    with context, ir.Location.unknown():
        try:
            module = stablehlo.deserialize_portable_artifact(context, program)
        except Exception as error:
            raise RuntimeError(f"jaxlib cannot read this StableHLO program: {error}") from error
        yield module


def written(module: Any) -> bytes:
    """The portable artifact of an MLIR module."""
    from jaxlib.mlir.dialects import stablehlo

    artifact: bytes = stablehlo.serialize_portable_artifact(module, stablehlo.get_current_version())
    return artifact


def _mentions(program: bytes, name: str) -> bool:
    # Names stand in the artifact's table of strings, each closed by a null.
    return name.encode() + b"\0" in program


def _decompose(program: bytes, names: frozenset[str]) -> bytes:
    from jaxlib.mlir import ir

    composites: list[Any] = []

    def collect(operation: Any) -> Any:
        if operation.name == "stablehlo.composite" and operation.attributes["name"].value in names:
            composites.append(operation)
        return ir.WalkResult.ADVANCE

    with readable(program) as module:
        module.operation.walk(collect)
        for composite in composites:
            with ir.InsertionPoint(composite):
                call = ir.Operation.create(
                    "func.call",
                    results=[result.type for result in composite.results],
                    operands=list(composite.operands),
                    attributes={"callee": composite.attributes["decomposition"]},
                )
            for old, new in zip(composite.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            composite.erase()
        return written(module)
