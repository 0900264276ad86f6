from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tpu_kernels.errors import SpecError
from tpu_kernels.specs import KernelSpec, load_spec

GOOD = """\
schema_version: 1
name: norm/rms-norm
op: norm
description: RMS norm.
source:
  kind: hub
  repo: acme/rms-norm
  version: 3
layer: RMSNorm
match:
  classes: [LlamaRMSNorm]
requires:
  dtypes: [float32, bfloat16]
  hidden:
    multiple_of: 128
tune:
  default: {block: 8}
tolerance: {float32: 1e-5}
"""


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "a_spec.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def refused(folder: Path, text: str | bytes) -> SpecError:
    file = write(folder, text)
    with pytest.raises(SpecError) as raised:
        load_spec(file)
    error = raised.value
    assert error.file == str(file)
    assert f"a_spec.yaml:{error.line}: " in str(error).splitlines()[0]
    return error


def test_a_good_spec_knows_the_line_of_every_key(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, GOOD))
    assert spec.name == "norm/rms-norm"
    assert spec.line_of("name") == 2
    assert spec.line_of("requires.hidden.multiple_of") == 15
    assert spec.line_of("requires.dtypes.1") == 13
    assert spec.line_of("requires.hidden.max") == 14
    assert spec.line_of("fallback") == 1
    assert spec.cite("requires.hidden.multiple_of") == f"{tmp_path}/a_spec.yaml:15"
    assert spec.tolerance == {"float32": 1e-5}


def test_a_file_below_the_working_directory_is_cited_relative_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel_specs").mkdir()
    write(tmp_path / "kernel_specs", GOOD)
    monkeypatch.chdir(tmp_path)
    spec = load_spec("kernel_specs/a_spec.yaml")
    assert spec.cite("requires.hidden.multiple_of") == "kernel_specs/a_spec.yaml:15"
    assert spec.file == tmp_path / "kernel_specs" / "a_spec.yaml"


def test_yaml_and_python_give_the_same_spec(tmp_path: Path) -> None:
    spec = load_spec(write(tmp_path, GOOD))
    assert KernelSpec(**spec.model_dump()).model_dump() == spec.model_dump()


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("layer:", "layre:", 9, ["unknown key `layre`", "did you mean `layer`?"]),
        ("    multiple_of", "    multiple", 15, ["unknown key `requires.hidden.multiple`", "`multiple_of`?"]),
        ("  version", "  versoin", 8, ["unknown key `source.versoin`", "did you mean `version`?"]),
        ("  repo", "  path", 7, ["unknown key `source.path`", "one of kind, repo, version"]),
        ("  classes", "  class", 11, ["unknown key `match.class`", "did you mean `classes`?"]),
        ("op: norm", "op: nrom", 3, ["unknown op `nrom`", "one of attention, mlp", "did you mean `norm`?"]),
        ("op: norm", "op: [norm]", 3, ["unknown op `['norm']`", "(list)"]),
        ("acme/rms-norm", "rms-norm", 7, ["'rms-norm' is not a Hub repository id", "ORG/NAME"]),
        ("  version: 3", "  version: 3\n  revision: abc", 9, ["a revision together with a version"]),
        ("  version: 3", "  trust: repo", 5, ["neither a version nor a revision"]),
        ("  version: 3", "  version: '3'", 8, ["`source.version` has the wrong type", "'3' (str)"]),
        ("  version: 3", "  version: 0", 8, ["`source.version` is not valid", "greater than or equal to 1"]),
        ("  version: 3", "  revision: 123", 8, ["`source.revision` has the wrong type", "123 (int)"]),
        ("layer:", "function: f\nlayer:", 10, ["both a function and a layer"]),
        ("layer: RMSNorm\n", "", 1, ["neither a function nor a layer"]),
        ("schema_version: 1", "schema_version: 2", 1, ["schema_version is not supported", "2 (int)"]),
        ("schema_version: 1", "schema_version: true", 1, ["schema_version is not supported", "True (bool)"]),
        ("norm/rms-norm", "rms-norm", 2, ["'rms-norm' is not a spec name"]),
        ("norm/rms-norm", "mlp/rms-norm", 2, ["does not begin with its op"]),
        ("  kind: hub", "  kind: git", 6, ["`source.kind` has an unknown value", "hub, bundled, path"]),
        ("  kind: hub\n", "", 5, ["the key `source.kind` is missing"]),
        ("  kind: hub\n  repo: acme/rms-norm\n  version: 3", "  kind: path", 5, ["`source.path` is missing"]),
        ("schema_version: 1\n", "", 1, ["the key `schema_version` is missing"]),
        ("op: norm\n", "", 1, ["the key `op` is missing"]),
        ("  dtypes: [float32, bfloat16]\n", "", 12, ["the key `requires.dtypes` is missing"]),
        ("[float32, bfloat16]", "[float32, bf16]", 13, ["`requires.dtypes.1`", "float32, bfloat16, float16"]),
        ("[float32, bfloat16]", "float32", 13, ["`requires.dtypes` has the wrong type", "a list"]),
        ("  classes: [LlamaRMSNorm]", "  classes: [Llama RMSNorm]", 11, ["not a Python name"]),
        (
            "    multiple_of: 128",
            "    multiple_of: 12.5",
            15,
            ["`requires.hidden.multiple_of` has the wrong"],
        ),
        ("    multiple_of: 128", "    min: 3\n    max: 2", 15, ["min 3 is above max 2"]),
        ("  default:", "  v3:", 17, ["'v3' is no TPU generation", "default, small, v4, v5e"]),
        ("{block: 8}", "{block: eight}", 17, ["`tune.default.block` has the wrong type"]),
        ("{block: 8}", "8", 17, ["`tune.default` has the wrong type", "a mapping"]),
        ("{float32: 1e-5}", "{float32: .inf}", 18, ["`tolerance.float32` is not valid", "finite"]),
        ("{float32: 1e-5}", "{float16: 1e-5}", 18, ["a tolerance for float16"]),
        ("RMS norm.", "{a: 1}", 4, ["`description` has the wrong type", "(dict)"]),
        ("description: RMS", "op: mlp\ndescription: RMS", 4, ["duplicate key `op`", "first given in line 3"]),
        (
            "    multiple_of",
            "    multiple_of: 1\n    multiple_of",
            16,
            ["duplicate key `requires.hidden.mul"],
        ),
        ("{block: 8}", "{block: 8", 18, ["not valid YAML"]),
        ("op: norm", "op: norm\n\tx: 1", 4, ["not valid YAML", "'\\t'"]),
        ("op: norm", "op: &a norm", 3, ["anchors and aliases are not allowed"]),
        ("op: norm", "op: !!python/name:os.system norm", 3, ["not valid YAML", "python/name"]),
        ("op: norm", "op: !thing {a: 1}", 3, ["the tag '!thing' is not allowed"]),
        ("op: norm", "op: 2024-13-45", 3, ["cannot read '2024-13-45'"]),
        ("op: norm", "op: norm\n1: 2", 4, ["a key must be a plain text"]),
        ("op: norm", "op: norm\n<<: {a: 1}", 4, ["unknown key `<<`"]),
        ("op: norm", "op: norm\n---\n", 4, ["expected a single document"]),
    ],
)
def test_each_mistake_has_its_own_message(tmp_path: Path, old: str, new: str, line: int, words: list[str]) -> None:
    assert old in GOOD
    error = refused(tmp_path, GOOD.replace(old, new, 1))
    for word in words:
        assert word in str(error)
    assert error.line == line


@pytest.mark.parametrize(
    ("raw", "line", "words"),
    [
        (b"", 1, "the file is empty"),
        (b"# only a comment\n\n", 1, "the file is empty"),
        (b"- a\n- b\n", 1, "must be a mapping"),
        (b"a: 1\nb: \xff\n", 2, "not UTF-8"),
        (b"a: 1\nb: \x07\n", 2, "U+0007"),
        (b"[" * 5000, 1, "nested too deeply"),
    ],
)
def test_files_that_are_no_spec_at_all(tmp_path: Path, raw: bytes, line: int, words: str) -> None:
    error = refused(tmp_path, raw)
    assert error.line == line
    assert words in str(error)


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("op: norm", "op: nrom").replace("layer:", "layre:").replace("  version: 3\n", "")
    lines = str(refused(tmp_path, text)).splitlines()
    also = [line for line in lines if line.startswith("Also ")]
    assert "a_spec.yaml:3: unknown op" in lines[0]
    assert len(also) == 2
    assert "a_spec.yaml:5: neither a version" in also[0]
    assert "a_spec.yaml:8: unknown key `layre`" in also[1]


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"gone\.yaml: the spec file cannot be read\.\n  Got: +No such file"):
        load_spec(tmp_path / "gone.yaml")
    with pytest.raises(SpecError, match="Is a directory"):
        load_spec(tmp_path)


def path_spec(path: str) -> str:
    return textwrap.dedent(f"""\
        schema_version: 1
        name: attention/local
        op: attention
        description: A kernel beside its spec.
        source:
          kind: path
          path: {path}
        function: attend
        requires: {{dtypes: [float32]}}
        """)


@pytest.mark.parametrize("path", ["..", "../other", "kernel/../../other", "/opt/kernel", "~/kernel"])
def test_a_path_must_stay_in_the_folder_of_its_spec(tmp_path: Path, path: str) -> None:
    error = refused(tmp_path, path_spec(path))
    assert "the path leaves the folder of the spec" in str(error)
    assert error.line == 7


def test_a_path_counts_from_the_folder_of_its_spec(tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    assert load_spec(write(tmp_path, path_spec("kernel"))).kernel_folder == tmp_path / "kernel"
    assert load_spec(write(tmp_path, path_spec("."))).kernel_folder == tmp_path
    error = refused(tmp_path, path_spec("absent"))
    assert "there is no such kernel folder" in str(error)
    assert error.line == 7
