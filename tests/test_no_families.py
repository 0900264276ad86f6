"""No file of the package names a model family: what it does follows from structure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import tpu_kernels

PACKAGE = Path(tpu_kernels.__file__).parent
ARCHITECTURES = Path(__file__).parent / "data" / "architectures.json"
# Named shapes of real models, the model of the demonstration, and the bundled specs of a wheel.
EXEMPT = re.compile(r"^(ops/\w+/cases\.py|assets/|demo/assets\.py|_bundled_specs/)")
# Families whose names are words as well.
WORDS = {"beam", "big", "data", "flex", "git", "got", "opt", "recurrent", "seed"}


def _families() -> set[str]:
    """The first word of each architecture's name, digits left out."""
    stems = {re.split(r"[-_\d]", name)[0] for name in json.loads(ARCHITECTURES.read_text())}
    return {stem for stem in stems if len(stem) >= 3} - WORDS


def test_no_file_names_a_model_family() -> None:
    pattern = re.compile(rf"(?<![a-z])({'|'.join(sorted(_families()))})(?![a-z])", re.IGNORECASE)
    assert pattern.search("class Qwen3Attention") and pattern.search('"gpt-oss-20b"') and pattern.search("is_llama4")
    found = []
    for path in sorted(PACKAGE.rglob("*")):
        name = path.relative_to(PACKAGE).as_posix()
        if path.suffix in (".py", ".yaml", ".toml", ".html", ".md", ".json") and not EXEMPT.match(name):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found += [f"{name}:{number}: {match[0]}" for match in pattern.finditer(line)]
    assert not found, "\n".join(found)
