"""One line of `tpu-kernels compile`: a kernel's case or a model's step, on one TPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tpu_kernels.lab.memory import Memory, hbm_shortage
from tpu_kernels.lab.targets import Target

Status = Literal["ok", "failed", "not covered"]


@dataclass(frozen=True)
class CompileLine:
    """What libtpu made of one case or step. Sizes in bytes."""

    subject: str
    case: str
    """Name of the case, or "decode" and "prefill" of a model."""
    target: Target
    dtype: str
    flow: str | None = None
    """Of a model: "tpu-kernels" or "plain"."""
    status: Status = "ok"
    message: str = ""
    """Why not, in one line."""
    seconds: float = 0.0
    memory: Memory | None = None
    vmem: int | None = None
    """Most VMEM that a kernel in the program uses, as the compiler allocated it; None if there is no kernel in it."""
    refused: bool = False
    """tpu_kernels itself refuses the model there, because weights and cache exceed the chip's memory."""
    note: str = ""
    """Which kernels the layers of a model took."""

    @property
    def free(self) -> int | None:
        """Bytes that the program leaves of what it may use on the chip; negative by how much it does not fit."""
        if self.memory is not None:
            return self.target.chip.usable_hbm_bytes - self.memory.total
        short = hbm_shortage(self.message) if self.status == "failed" else None
        return None if short is None else -short

    @property
    def fits(self) -> bool | None:
        """Whether the program fits the chip's memory; None where that is not known."""
        free = self.free
        if free is None:
            return False if self.refused else None
        return free >= 0

    @property
    def failed(self) -> bool:
        return self.status == "failed" or self.fits is False

    def as_dict(self) -> dict[str, Any]:
        memory = None if self.memory is None else asdict(self.memory)
        return {
            "subject": self.subject,
            "case": self.case,
            "flow": self.flow,
            "topology": self.target.topology,
            "chip": self.target.chip.name,
            "dtype": self.dtype,
            "status": self.status,
            "message": self.message or None,
            "note": self.note or None,
            "seconds": round(self.seconds, 2),
            "vmem_bytes": self.vmem,
            "vmem_of": self.target.chip.vmem_bytes,
            **{f"{name}_bytes": memory and memory[name] for name in Memory.__dataclass_fields__},
            "usable_bytes": self.target.chip.usable_hbm_bytes,
            "free_bytes": self.free,
            "fits": self.fits,
        }
