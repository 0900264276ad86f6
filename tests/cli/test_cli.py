from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tpu_kernels
from tpu_kernels.cli.main import app

ROOT = Path(tpu_kernels.__file__).parents[1]
COMMANDS = ["compile", "cost", "coverage", "demo", "doctor", "emulate", "generate", "launch", "plan", "specs", "tune"]


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as the installed script would start it."""
    code = "import sys; from tpu_kernels.cli.main import main; sys.argv[0] = 'tpu-kernels'; main()"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "COLUMNS": "200", **environment}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=300)


def test_help_lists_every_command() -> None:
    for arguments in ([], ["--help"]):
        output = CliRunner().invoke(app, arguments).output
        assert all(f" {command} " in output for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_version() -> None:
    assert run("--version").stdout == f"tpu-kernels {tpu_kernels.__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    result = run("enable")
    assert result.returncode == 2
    assert "No such command 'enable'" in result.stderr


def test_specs_shows_where_each_came_from(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema_version: 1\nname: mlp/mine\nop: mlp\ndescription: A kernel.\n"
        "source: {kind: hub, repo: acme/mlp, version: 2}\nlayer: Mlp\nrequires: {dtypes: [bfloat16]}\n"
    )
    result = run("specs", "--spec", str(tmp_path))
    assert result.returncode == 0, result.stderr
    for word in ("mlp/mine", "acme/mlp@v2", "Mlp", "given", f"{tmp_path}/mine.yaml:2"):
        assert word in result.stdout
    assert "attention/static-attention" in result.stdout
    assert "bundled" in result.stdout


def test_an_error_of_ours_is_a_message_without_a_traceback() -> None:
    result = run("specs", "--spec", "gone.yaml")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: there is no kernel spec at gone.yaml.\n  Needs: ")
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback() -> None:
    result = run("specs", "--spec", "gone.yaml", TPU_KERNELS_VERBOSITY="debug")
    assert result.returncode == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert "\nerror: there is no kernel spec at gone.yaml.\n" in result.stderr


def test_doctor_prints_json() -> None:
    result = run("doctor", "--json")
    diagnosis = json.loads(result.stdout)
    assert diagnosis["ok"] is True
    assert result.returncode == 0
    found = {finding["name"]: finding for finding in diagnosis["findings"]}
    assert found["kernels"]["status"] == "ok"
    assert "offline by HF_HUB_OFFLINE" in found["Hub"]["found"]


@pytest.fixture(scope="module")
def bare_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed packages but without the heavy ones of the stack."""
    folder = tmp_path_factory.mktemp("site")
    heavy = ("torch", "jax", "transformers", "kernels", "huggingface_hub", "accelerate", "libtpu", "tpu_kernels")
    for entry in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for package in entry.iterdir():
            if not package.name.lower().startswith(heavy) and package.suffix != ".pth":
                (folder / package.name).symlink_to(package)
    return folder


def test_doctor_works_where_the_stack_is_missing(bare_packages: Path) -> None:
    code = "from tpu_kernels.cli.main import main; main()"
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}{os.pathsep}{bare_packages}", "COLUMNS": "200"}
    command = [sys.executable, "-S", "-c", code, "doctor"]
    result = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    for line in ("torch: pip install", 'kernels: pip install "kernels>=0.17.2,<0.18', "Hub: install huggingface_hub"):
        assert line in result.stdout
    assert "broken." in result.stdout.splitlines()[-1]


def test_emulate_runs_a_script_with_its_own_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\nprint(sys.argv[1:], torch.ones(3, device='tpu').sum().item(), __name__)\nsys.exit(7)\n"
    )
    result = run("emulate", str(script), "--help", "--force", "-x", "3")
    assert result.returncode == 7, result.stderr
    assert result.stdout == "['--help', '--force', '-x', '3'] 3.0 __main__\n"


def test_emulate_without_its_script() -> None:
    result = run("emulate", "gone.py")
    assert result.returncode != 0
    assert "gone.py" in result.stderr
    assert "Traceback" not in result.stderr


def test_plan_prints_the_table(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 32,
        "dtype": "bfloat16",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    result = run("plan", str(file))
    assert result.returncode == 0, result.stderr
    assert "11 of 11 layers get a kernel" in result.stdout
    assert "attention/static-attention" in result.stdout


def test_plan_refuses_an_unknown_policy(tmp_path: Path) -> None:
    result = run("plan", str(tmp_path), "--policy", "never")
    assert result.returncode == 2
    assert "--policy" in result.stderr
