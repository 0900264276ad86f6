"""Start the emulated TPU in this process."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator

from tpu_kernels.emulator import device, garbage, guards, preflight, scalars
from tpu_kernels.emulator.pjrt import PjrtApi
from tpu_kernels.emulator.state import STATE

_LOCK = threading.Lock()

# Read once while torch_tpu and jax load. They are put back afterwards, so that a child process (an
# ahead-of-time compile by libtpu, for one) does not inherit them.
_WHILE_LOADING = {
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TPU_SKIP_MDS_QUERY": "1",
    "JAX_PLATFORMS": "cpu",
}


# With these torch_tpu expects one chip of a slice, and looks for the others through libtpu.
_OF_A_LAUNCH = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCH_TPU_TOPOLOGY",
    "TORCH_TPU_SLICEBUILDER_ADDRESSES",
)


def start(force: bool = False, *, rank: int = 0, ranks: int = 1) -> None:
    """Make `tpu` a device of torch in this process: the real torch_tpu on XLA's CPU plugin.

    It must run before anything imports torch; it imports torch, torch_tpu and jax itself. Afterwards
    `torch.device("tpu")`, `torch.compile(backend="tpu")`, `torch.tpu.pallas.jax_op` (Pallas kernels
    in interpret mode) and Hub kernels of the backend `tpu` work. Starting twice does nothing.

    With `ranks` above 1 this process is one of that many ranks, alone: torch_tpu's own process group is started as if
    the others were there. That is for `capture()`, which then sees programs with their collectives; none can run. (For
    ranks that run, start a process for each and call `init_process_group` there.)

    `force` (or TPU_KERNELS_EMULATOR_FORCE=1) goes ahead on a machine with a TPU and with a version
    of torch_tpu that was never tried. Raises EmulatorError with what to do.
    """
    with _LOCK:
        if STATE.active:
            return
        force = force or os.environ.get(preflight.FORCE_VARIABLE, "0") not in ("", "0")
        preflight.check_nothing_imported_too_early()
        preflight.check_no_tpu(force=force)
        preflight.check_torch_tpu(force=force)
        plugin = preflight.cpu_plugin_path()
        _use_fresh_compile_cache()
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with _environment({**_WHILE_LOADING, "TPU_LIBRARY_PATH": str(plugin)}), _hidden(_OF_A_LAUNCH):
            # torch_tpu and jax would both look for the real TPU runtime in this module.
            sys.modules["libtpu"] = None  # type: ignore[assignment]
            device.install(PjrtApi(plugin), rank, ranks)
            _load_torch_tpu()
            _connect(rank, ranks)
            _load_jax()
        STATE.active = True


def _load_torch_tpu() -> None:
    with warnings.catch_warnings(), _quiet():
        warnings.filterwarnings("ignore", message="<TorchTpu/Performance/TcMalloc/>")
        import torch
        import torch_tpu

        torch_tpu._loader._init_device("tpu")
        # Creates the PJRT client now, while the environment says where the plugin is.
        torch.empty(1, device="tpu").cpu()
    guards.install()
    scalars.install()
    garbage.install()
    # What `kernels` looks for to know that this is a TPU host; torch_tpu does not set it.
    torch.backends.tpu = torch.tpu  # type: ignore[attr-defined]
    # torch_tpu's flash attention is a Mosaic kernel, which no CPU can run.
    torch.backends.cuda.enable_flash_sdp(False)


def _connect(rank: int, ranks: int) -> None:
    """Groups of emulated chips, or a group in which this process is alone."""
    # They read torch's distributed package, so they can only be imported now.
    from tpu_kernels.emulator import collectives, lone_rank

    if ranks > 1:
        lone_rank.install(rank, ranks)
    else:
        collectives.install()


def _load_jax() -> None:
    import jax
    from jax.experimental.pallas import tpu as pltpu

    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    jax.devices()
    # True, not an InterpretParams: those use callbacks, which cannot be exported through jax_op.
    pltpu.set_tpu_interpret_mode(True)  # type: ignore[arg-type]


def _use_fresh_compile_cache() -> None:
    """An empty on-disk cache: counts start from nothing, and no kernel of an earlier run comes back."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="tpu-kernels-emulator-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    saved = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _hidden(names: Iterable[str]) -> Iterator[None]:
    saved = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch_tpu's progress lines off the screen; show them if it fails."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    except BaseException:
        sys.stderr.write(out.getvalue() + err.getvalue())
        raise
