"""The search for block sizes, and what it writes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.kernels import copy_of_bundled, edit
from tpu_kernels import KernelSpec, load_registry, load_spec
from tpu_kernels.errors import CompileError, SpecError
from tpu_kernels.lab.cost.subject import Subject, attention_subject
from tpu_kernels.lab.tune import Tuned, Tuning, candidates, tune, write_tuning
from tpu_kernels.lab.tune.candidates import OWN_SIZES, accepted, spec_candidates
from tpu_kernels.lab.tune.command import calls, print_tuned, write
from tpu_kernels.lab.tune.search import Measured, choose, with_tuning
from tpu_kernels.lab.tune.timing import run_timings, time_on_tpu
from tpu_kernels.lab.tune.yaml_edit import replace_section
from tpu_kernels.ops.attention.cases import case

LONG = case("qwen3-8b/decode").resized(batch=1, max_len=16384)
MIDDLE: Tuning = {"block_k": 512}
NARROW: Tuning = {"block_k": 128}
TOO_WIDE: Tuning = {"block_k": 8192, "num_buffers": 16}


@pytest.fixture(scope="module")
def spec() -> KernelSpec:
    return load_registry().get("attention/static-attention")


@pytest.fixture(scope="module")
def tuned(spec: KernelSpec, tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """A kernel that picks blocks of 128 by itself, which are too small to hide the latency of its products."""
    repository = copy_of_bundled(tmp_path_factory.mktemp("repository"))
    edit(repository, "blocks.py", "DEFAULT_BLOCK_K = 512", "DEFAULT_BLOCK_K = 128")
    edit(repository, "blocks.py", "MIN_COPY_BYTES = 2**20", "MIN_COPY_BYTES = 0")
    kernel = repository / "torch-ext" / "static_attention" / "kernel.py"
    subject = attention_subject(LONG, kernel, "bfloat16", 8192)
    (result,) = tune(spec, ["tpu7x"], lambda _: [subject], candidates=(OWN_SIZES, MIDDLE, NARROW, TOO_WIDE))
    return result


def test_blocks_that_are_too_small_are_found_out(tuned: Tuned) -> None:
    assert tuned.best == MIDDLE
    assert tuned.gain > 0.5
    times = {name: tuned.times(choice)["qwen3-8b/decode"] for name, choice in (("own", OWN_SIZES), ("128", NARROW))}
    assert times["own"] == times["128"]


def test_a_candidate_that_runs_out_of_vmem_is_left_out(tuned: Tuned) -> None:
    (why,) = tuned.rejected.values()
    assert "vmem" in why.lower()
    assert list(tuned.times(TOO_WIDE).values()) == [None]


def test_the_table_shows_every_candidate(tuned: Tuned, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    print_tuned([tuned], Console(highlight=False, width=120))
    out = capsys.readouterr().out
    assert "us by estimate" in out and "qwen3-8b/decode" in out
    assert f"tpu7x: block_k 512, {100 * tuned.gain:.1f} % faster" in out


def test_an_unknown_generation_keeps_the_default_and_is_logged_once(
    spec: KernelSpec, caplog: pytest.LogCaptureFixture
) -> None:
    default = spec.model_copy(update={"tune": {"default": {"block_k": 256}}})
    with caplog.at_level(logging.WARNING, logger="tpu_kernels"):
        (result,) = tune(default, ["v9"], lambda _: [], candidates=[OWN_SIZES])
    assert result.best == {"block_k": 256} and result.measured == ()
    assert [record.getMessage() for record in caplog.records] == [
        "attention/static-attention: the TPU generation 'v9' is not known; it keeps the default tuning"
    ]


def measured(times: dict[str, dict[str, float | None]]) -> tuple[list[Measured], list[Tuning]]:
    """From {candidate: {call: seconds}}, with candidates named by block_k."""
    calls = {name: Subject(name, "bfloat16", {}, None, {}, None, 0, 0) for found in times.values() for name in found}  # type: ignore[arg-type]
    candidates = {name: OWN_SIZES if name == "own" else {"block_k": int(name)} for name in times}
    return [
        Measured(calls[name], candidates[candidate], seconds, "" if seconds else "too much VMEM")
        for candidate, found in times.items()
        for name, seconds in found.items()
    ], list(candidates.values())


@pytest.mark.parametrize(
    ("times", "best"),
    [
        ({"own": {"a": 10, "b": 10}, "512": {"a": 8, "b": 9}, "1024": {"a": 9, "b": 9}}, {"block_k": 512}),
        ({"own": {"a": 10, "b": 10}, "512": {"a": 9.9, "b": 9.9}}, OWN_SIZES),  # too little to believe
        ({"own": {"a": 10, "b": 10}, "512": {"a": 5, "b": 11}}, OWN_SIZES),  # one call becomes slower
        ({"own": {"a": 10, "b": 10}, "1024": {"a": 5, "b": None}, "512": {"a": 9, "b": 9}}, {"block_k": 512}),
        ({"own": {"a": None, "b": 10}, "512": {"a": 9, "b": 9}, "256": {"a": 8, "b": 9}}, {"block_k": 256}),
        ({"own": {"a": None}, "512": {"a": None}}, OWN_SIZES),
    ],
)
def test_choice(times: dict[str, dict[str, float | None]], best: Tuning) -> None:
    found, candidates = measured(times)
    assert choose("v6e", found, candidates, "estimate").best == best


def test_the_choice_falls_to_smaller_blocks_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    found, candidates = measured({"own": {"a": 10}, "1024": {"a": None}, "512": {"a": 9}})
    with caplog.at_level(logging.INFO, logger="tpu_kernels"):
        result = choose("v6e", found, candidates, "estimate")
    assert result.best == {"block_k": 512}
    assert caplog.messages == ["block_k 1024 cannot be used on v6e: a: too much VMEM"]


def test_a_decode_step_is_judged_at_several_lengths(spec: KernelSpec) -> None:
    subjects = calls(spec, ["phi-4"])("v6e")
    assert [subject.sizes["length"] for subject in subjects] == [512, 2048, 4096, 4096]
    assert with_tuning(subjects[0], MIDDLE).job.keywords["block_k"] == 512


def test_candidates_are_those_that_the_kernel_takes(spec: KernelSpec, tmp_path: Path) -> None:
    assert spec_candidates(spec) == (OWN_SIZES, *({"block_k": size} for size in (1024, 512, 256, 128)))
    kernel = tmp_path / "kernel.py"
    kernel.write_text("def mlp(x, *, block_rows=None): ...\ndef gated_mlp(x, *, block_i=None, block_rows=None): ...\n")
    by_rows, by_both = {"block_rows": 8}, {"block_rows": 8, "block_i": 128}
    assert accepted([by_rows, by_both], kernel, ["mlp", "gated_mlp"]) == (by_rows,)
    assert accepted([by_rows, by_both], kernel, ["gated_mlp"]) == (by_rows, by_both)


def test_a_kernel_of_another_op_is_tuned(product_spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no sizes of its own, and one step with whole matrices is better than eight."""
    parts, whole = ({f"block_{side}": size for side in "mnk"} for size in (128, 256))
    monkeypatch.setattr(candidates, "CANDIDATES", {product_spec.op: (parts, {"block_rows": 8}, whole)})
    subjects = calls(product_spec.model_copy(update={"tune": {}}), ["tiny"], tokens=256)
    (result,) = tune(product_spec, ["v6e"], subjects, candidates=spec_candidates(product_spec))
    assert result.best == whole and list(result.rejected) == ["the kernel's own sizes"]
    before, after = result.times(parts), result.times(whole)
    assert list(after) == ["tiny/decode", "tiny/prefill"]
    assert all(after[name] < before[name] for name in after)


def test_only_the_section_changes(tmp_path: Path, spec: KernelSpec) -> None:
    assert spec.file is not None
    copy = tmp_path / "spec.yaml"
    before = spec.file.read_text()
    copy.write_text(before)
    write_tuning(copy, {"tpu7x": {"block_k": 1024}, "v6e": {}})
    after = copy.read_text()
    assert load_spec(copy).tuning("tpu7x") == {"block_k": 1024}
    assert load_spec(copy).tuning("v6e") == {}
    assert load_spec(copy).small_tuning("v6e") == spec.small_tuning("v6e") != {}
    head, section, tail = before.partition("tune:\n  small: {block_q: 16, block_k: 128, num_buffers: 2}\n")
    assert section and after.startswith(head + section) and after.endswith(tail)
    write_tuning(copy, {"v5e": {"block_k": 256, "num_buffers": 2}})
    assert load_spec(copy).tuning("tpu7x") == {"block_k": 1024}
    assert load_spec(copy).tuning("v5e") == {"block_k": 256, "num_buffers": 2}
    write_tuning(copy, {"tpu7x": {}, "v5e": {}})
    assert copy.read_text() == before


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: 1\n", "a: 1\n\ntune:\n  v6e: {block_k: 512}\n"),
        ("tune:\n  v5e:\n    block_k: 1  # why\n\n# next\nb: 2\n", "tune:\n  v6e: {block_k: 512}\n\n# next\nb: 2\n"),
        ("# first\ntune: {}\nb: 2  # kept\n", "# first\ntune:\n  v6e: {block_k: 512}\nb: 2  # kept\n"),
    ],
)
def test_sections_in_every_place(text: str, wanted: str) -> None:
    assert replace_section(text, {"v6e": {"block_k": 512}}) == wanted


def test_a_spec_without_a_file_cannot_be_written(spec: KernelSpec, tuned: Tuned) -> None:
    with pytest.raises(SpecError, match="no file to write"):
        write(KernelSpec(**spec.model_dump()), [tuned])


def test_a_file_that_cannot_be_edited_stays(tmp_path: Path, spec: KernelSpec) -> None:
    assert spec.file is not None
    odd = tmp_path / "spec.yaml"
    odd.write_text(spec.file.read_text().replace("tune:\n", '"tune":\n'))
    before = odd.read_text()
    with pytest.raises(SpecError):
        write_tuning(odd, {"v6e": {"block_k": 512}})
    assert odd.read_text() == before


def test_kernels_are_timed_only_on_a_tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that times is real; here its device is a CPU, which `time_on_tpu` refuses."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    plain = tmp_path / "kernel.py"
    plain.write_text("def attend(query, key, value, bounds, sinks=None, **_):\n    return query * bounds.sum()\n")
    subject = attention_subject(case("qwen3-0.6b/decode/small"), plain, "float32", 256)
    device, (answer,) = run_timings([subject], calls=2, samples=1)
    assert device["platform"] == "cpu"
    assert answer["error"] is None and answer["seconds"] > 0
    with pytest.raises(CompileError, match="a device of the kind cpu"):
        time_on_tpu([])
