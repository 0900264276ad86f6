from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tpu_kernels.errors import SpecError
from tpu_kernels.ops.activations import ACTIVATIONS
from tpu_kernels.specs import (
    BundledSource,
    Dimension,
    HubSource,
    KernelSpec,
    Match,
    PathSource,
    Requires,
)
from tpu_kernels.specs.vocabulary import FEATURES


def a_spec(**changes: Any) -> KernelSpec:
    fields: dict[str, Any] = {
        "name": "attention/mine",
        "op": "attention",
        "description": "A kernel.",
        "source": HubSource(repo="acme/fast-attention", version=1),
        "function": "attention",
        "requires": Requires(dtypes=("bfloat16",)),
    }
    return KernelSpec(**(fields | changes))


def test_a_spec_built_in_python_knows_that_it_has_no_file() -> None:
    spec = a_spec()
    assert spec.origin == "<python>"
    assert spec.file is None
    assert spec.line_of("requires.dtypes") is None
    assert spec.cite("requires.dtypes") == "<python>"
    assert spec.fallback == "auto"
    assert spec.entry == "attention"


def test_a_spec_is_immutable_hashable_and_survives_copy_and_pickle() -> None:
    spec = a_spec(tune={"default": {"block_k": 512}})
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "attention/other"  # type: ignore[misc]
    assert copy.deepcopy(spec) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(a_spec(tune={"default": {"block_k": 512}}))


def test_two_specs_of_different_content_differ() -> None:
    assert a_spec() == a_spec()
    assert a_spec() != a_spec(fallback="eager")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "norm/mine"}, "does not begin with its op"),
        ({"name": "Attention Mine"}, "is not a spec name"),
        ({"function": None}, "neither a function nor a layer"),
        ({"layer": "Fast"}, "both a function and a layer"),
        ({"function": "no-name"}, "not a Python name"),
        ({"description": "  "}, "the text is empty"),
        ({"op": "attn"}, "unknown op `attn`"),
        ({"fallback": "flash"}, "`fallback` has an unknown value"),
        ({"speed": 3}, "unknown key `speed`"),
        ({"tune": {"v9": {"block_k": 1}}}, "'v9' is no TPU generation"),
        ({"tune": {"v6e": {"block_k": True}}}, "`tune.v6e.block_k` has the wrong type"),
        ({"tolerance": {"float32": 1e-5}}, "a tolerance for float32, which the kernel does not take"),
        ({"tolerance": {"bfloat16": -1.0}}, "`tolerance.bfloat16` is not valid"),
        ({"requires": {"dtypes": ["bf16"]}}, "`requires.dtypes.0` has an unknown value"),
        ({"requires": {"dtypes": ["float32"], "hidden": {"min": 1}}}, "'hidden' is not a size of attention"),
        ({"requires": {"dtypes": ["float32"], "features": ["sink"]}}, "did you mean `sinks`"),
    ],
)
def test_a_malformed_spec_in_python_is_a_spec_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        a_spec(**changes)
    assert message in str(raised.value)
    assert raised.value.file is None
    assert raised.value.line is None


def test_sdpa_is_a_fallback_for_attention_alone() -> None:
    assert a_spec(fallback="sdpa").fallback == "sdpa"
    with pytest.raises(SpecError, match="no SDPA for norm layers"):
        a_spec(name="norm/mine", op="norm", fallback="sdpa")


@pytest.mark.parametrize(
    "repo",
    ["noslash", "a/b/c", "-a/b", "a/b-", "a/.b", "a//b", "a/b--c", "a/b.git", "a b/c", "a/" + "b" * 100],
)
def test_bad_repo_ids(repo: str) -> None:
    with pytest.raises(SpecError, match="is not a Hub repository id"):
        HubSource(repo=repo, version=1)


@pytest.mark.parametrize("repo", ["kernels-community/relu", "a/b", "Org_1/name.v2_x-y"])
def test_good_repo_ids_agree_with_huggingface_hub(repo: str) -> None:
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo)
    assert HubSource(repo=repo, version=1).repo == repo


def test_a_hub_source_needs_exactly_one_pin() -> None:
    assert str(HubSource(repo="a/b", version=2)) == "a/b@v2"
    assert str(HubSource(repo="a/b", revision="abc123")) == "a/b@abc123"
    with pytest.raises(SpecError, match="a revision together with a version"):
        HubSource(repo="a/b", version=2, revision="main")
    with pytest.raises(SpecError, match="neither a version nor a revision"):
        HubSource(repo="a/b")


def test_trust_becomes_the_argument_of_kernels() -> None:
    assert HubSource(repo="a/b", version=1).trust_remote_code is False
    assert HubSource(repo="a/b", version=1, trust="repo").trust_remote_code == ["a/b"]


def test_kernel_folders(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert a_spec().kernel_folder is None
    assert a_spec(source=PathSource(path="k")).kernel_folder == tmp_path / "k"
    assert a_spec(source=PathSource(path="/opt/k")).kernel_folder.as_posix() == "/opt/k"  # type: ignore[union-attr]
    bundled = a_spec(source=BundledSource(name="static-attention")).kernel_folder
    assert bundled is not None
    assert bundled.parts[-3:] == ("tpu_kernels", "hub_kernels", "static-attention")


def test_a_dimension_names_each_bound_that_a_size_breaks() -> None:
    dimension = Dimension(min=16, max=256, multiple_of=8)
    assert list(dimension.unmet("head_dim", 64)) == []
    assert list(dimension.unmet("head_dim", 256)) == []
    assert list(dimension.unmet("head_dim", 257)) == [
        ("max", "head_dim <= 256"),
        ("multiple_of", "head_dim % 8 == 0"),
    ]
    assert list(dimension.unmet("head_dim", 15)) == [
        ("min", "head_dim >= 16"),
        ("multiple_of", "head_dim % 8 == 0"),
    ]


def test_a_dimension_must_say_something_that_can_hold() -> None:
    with pytest.raises(SpecError, match="no min, max or multiple_of"):
        Dimension()
    with pytest.raises(SpecError, match="min 3 is above max 2"):
        Dimension(min=3, max=2)


def test_an_empty_match_accepts_every_class() -> None:
    assert Match().accepts("LlamaAttention")
    assert Match(classes=("LlamaAttention",)).accepts("LlamaAttention")
    assert not Match(classes=("LlamaAttention",)).accepts("MistralAttention")
    with pytest.raises(SpecError, match="is not valid"):
        Match(classes=())


def test_tuning_of_a_generation_overlays_the_default() -> None:
    spec = a_spec(tune={"default": {"block_k": 512, "buffers": 3}, "tpu7x": {"block_k": 1024}})
    assert spec.tuning() == {"block_k": 512, "buffers": 3}
    assert spec.tuning("v6e") == {"block_k": 512, "buffers": 3}
    assert spec.tuning("tpu7x") == {"block_k": 1024, "buffers": 3}
    assert a_spec().tuning("v6e") == {}


def test_every_activation_has_a_word_in_specs() -> None:
    for op in ("mlp", "experts"):
        assert set(ACTIVATIONS) <= set(FEATURES[op])
