from __future__ import annotations

from pathlib import Path

import pytest

from tpu_kernels.errors import DuplicateSpecError, SpecError
from tpu_kernels.registry import Registry, bundled_specs_folder, load_registry
from tpu_kernels.specs import HubSource, KernelSpec, Requires, load_spec

BUNDLED_NAME = "attention/static-attention"


def a_spec(name: str, op: str = "attention") -> KernelSpec:
    return KernelSpec(
        name=name,
        op=op,
        description="A kernel.",
        source=HubSource(repo="acme/kernel", version=1),
        function="run",
        requires=Requires(dtypes=("float32",)),
    )


def write_spec(file: Path, name: str, op: str = "attention") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"schema_version: 1\nop: {op}\nname: {name}\ndescription: A kernel.\n"
        "source: {kind: hub, repo: acme/kernel, version: 1}\nfunction: run\nrequires: {dtypes: [float32]}\n"
    )
    return file


def install_package(folder: Path, name: str, entry_point: str, module: str) -> None:
    """What pip leaves behind for a package with one entry point."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tpu_kernels.specs]\n{entry_point}\n")
    (folder / f"{name}.py").write_text(module)


@pytest.fixture(autouse=True)
def _no_specs_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_KERNELS_SPECS", raising=False)


def test_the_bundled_specs_are_always_there() -> None:
    registry = load_registry()
    assert BUNDLED_NAME in registry
    assert registry.provider_of(BUNDLED_NAME) == "bundled"
    files = {spec.file for spec in registry if registry.provider_of(spec.name) == "bundled"}
    assert files == set(bundled_specs_folder().rglob("*.yaml"))


def test_every_bundled_spec_lies_in_the_folder_of_its_op() -> None:
    for spec in load_registry():
        assert spec.file is not None
        assert spec.file.parent.name == spec.op


def test_preference_is_given_then_environment_then_entry_points_then_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_spec(tmp_path / "mine/deep/er.yaml", "attention/from-environment")
    monkeypatch.setenv("TPU_KERNELS_SPECS", str(tmp_path / "mine"))
    plugin = "from pathlib import Path\nSPECS = [Path(__file__).parent / 'theirs']\n"
    install_package(tmp_path / "site", "kernel_pack", "pack = kernel_pack:SPECS", plugin)
    write_spec(tmp_path / "site/theirs/a.yml", "attention/from-entry-point")
    monkeypatch.syspath_prepend(tmp_path / "site")

    one_file = write_spec(tmp_path / "one.yaml", "attention/from-file")
    registry = load_registry([a_spec("attention/from-python"), str(one_file), a_spec("norm/other", "norm")])

    names = [spec.name for spec in registry.for_op("attention")]
    assert names == [
        "attention/from-python",
        "attention/from-file",
        "attention/from-environment",
        "attention/from-entry-point",
        BUNDLED_NAME,
    ]
    assert [registry.provider_of(name) for name in names] == [
        "given",
        "given",
        "TPU_KERNELS_SPECS",
        "entry point pack = kernel_pack:SPECS of kernel_pack",
        "bundled",
    ]
    assert [spec.name for spec in registry.for_op("norm")] == ["norm/other", "norm/norm"]
    assert registry.for_op("pooling") == ()


def test_a_single_path_or_spec_need_no_list(tmp_path: Path) -> None:
    file = write_spec(tmp_path / "one.yaml", "attention/from-file")
    assert "attention/from-file" in load_registry(file)
    assert "attention/from-file" in load_registry(str(tmp_path))
    assert "attention/x" in load_registry(a_spec("attention/x"))


def test_two_specs_of_one_name_are_an_error_that_names_both_places(tmp_path: Path) -> None:
    first = write_spec(tmp_path / "a.yaml", "attention/twice")
    second = write_spec(tmp_path / "b.yaml", "attention/twice")
    with pytest.raises(DuplicateSpecError) as raised:
        load_registry([tmp_path])
    assert f"{first}:3 (given)" in str(raised.value)
    assert f"{second}:3 (given)" in str(raised.value)
    assert (raised.value.file, raised.value.line) == (str(second), 3)


def test_a_spec_in_python_may_not_take_the_name_of_a_bundled_one() -> None:
    with pytest.raises(DuplicateSpecError) as raised:
        load_registry([a_spec(BUNDLED_NAME)])
    assert "<python> (given)" in str(raised.value)
    assert "static_attention.yaml:2 (bundled)" in str(raised.value)


def test_a_changed_copy_of_a_bundled_spec_is_a_second_spec() -> None:
    spec = load_registry().get(BUNDLED_NAME)
    with pytest.raises(DuplicateSpecError):
        load_registry([spec.model_copy(update={"fallback": "eager"})])


def test_the_same_file_met_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_spec(tmp_path / "a.yaml", "attention/once")
    (tmp_path / "link.yaml").symlink_to(file)
    monkeypatch.setenv("TPU_KERNELS_SPECS", str(tmp_path))
    registry = load_registry([file, load_spec(file), bundled_specs_folder()])
    assert len(registry) == len(load_registry())
    assert registry.provider_of("attention/once") == "given"


def test_get_lists_the_names_there_are() -> None:
    with pytest.raises(SpecError, match=r"no kernel spec named `attention/static-atention`") as raised:
        load_registry().get("attention/static-atention")
    assert f"did you mean `{BUNDLED_NAME}`?" in str(raised.value)
    with pytest.raises(SpecError, match="a registry with specs"):
        Registry().get("attention/any")


@pytest.mark.parametrize("missing", ["gone", "gone.yaml"])
def test_a_missing_path_is_an_error(tmp_path: Path, missing: str) -> None:
    with pytest.raises(SpecError, match=f"there is no kernel spec at .*{missing}"):
        load_registry([tmp_path / missing])


def test_a_folder_without_specs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no kernel spec lies in the folder"):
        load_registry([tmp_path])


def test_something_that_is_neither_path_nor_spec_is_an_error() -> None:
    with pytest.raises(SpecError, match=r"(?s)something else than a spec or a path.*3 \(int\)"):
        load_registry([3])  # type: ignore[list-item]


def test_the_environment_variable_must_name_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_KERNELS_SPECS", "")
    load_registry()
    for value in (tmp_path / "gone", write_spec(tmp_path / "a.yaml", "attention/x")):
        monkeypatch.setenv("TPU_KERNELS_SPECS", str(value))
        with pytest.raises(SpecError, match="TPU_KERNELS_SPECS does not name a folder") as raised:
            load_registry()
        assert str(value) in str(raised.value)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise RuntimeError('broken on purpose')", "cannot be loaded"),
        ("OTHER = 1", "cannot be loaded"),
        ("SPECS = 3", "offers no specs"),
        ("SPECS = ['/nowhere/at/all']", "there is no kernel spec at /nowhere/at/all"),
    ],
)
def test_a_broken_entry_point_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, message: str
) -> None:
    name = f"pack_{abs(hash(module))}"
    install_package(tmp_path, name, f"pack = {name}:SPECS", module)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError) as raised:
        load_registry()
    assert message in str(raised.value)
    assert f"pack = {name}:SPECS of {name}" in str(raised.value)


def test_an_entry_point_may_offer_specs_built_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = (
        "from tpu_kernels.specs import HubSource, KernelSpec, Requires\n"
        "SPECS = KernelSpec(name='mlp/theirs', op='mlp', description='x', layer='Mlp',\n"
        "    source=HubSource(repo='a/b', revision='main'), requires=Requires(dtypes=('float32',)))\n"
    )
    install_package(tmp_path, "python_pack", "pack = python_pack:SPECS", module)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_registry().for_op("mlp")[0].name == "mlp/theirs"


def test_bundled_specs_are_found_in_a_checkout_and_in_an_installed_package(tmp_path: Path) -> None:
    package = tmp_path / "tpu_kernels"
    package.mkdir()
    with pytest.raises(SpecError, match="the kernel specs that ship with tpu-kernels are missing"):
        bundled_specs_folder(package)
    (tmp_path / "kernel_specs").mkdir()
    assert bundled_specs_folder(package) == tmp_path / "kernel_specs"
    (package / "_bundled_specs").mkdir()
    assert bundled_specs_folder(package) == package / "_bundled_specs"


def test_the_op_may_be_left_out_of_a_name() -> None:
    registry = load_registry()
    assert registry.find("static-attention") is registry.get("attention/static-attention")
    assert registry.find("attention") is None and registry.find("static") is None
