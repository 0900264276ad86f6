"""Programs on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_kernels.errors import CompileError
from tpu_kernels.lab.programs import Program, load_programs, save_programs


def test_saved_programs_are_loaded_in_order(tmp_path: Path) -> None:
    programs = [Program("b/decode step", b"b", b"options", "module", "note"), Program("a", b"a", b"")]
    assert load_programs(save_programs(programs, tmp_path / "new")) == programs


def test_two_programs_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two programs are called 'a b'"):
        save_programs([Program("a-b", b"1", b""), Program("a b", b"2", b"")], tmp_path)


def test_a_folder_without_programs(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"programs\.json"):
        load_programs(tmp_path)
