"""Two nodes of one chip each give the tokens of one node of two: one launcher for each, joined by torchrun alone."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.tensor_parallel.launching import finish, start, written
from tests.tensor_parallel.test_equal import write


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def test_two_nodes_of_one_chip(tmp_path: Path) -> None:
    write("qwen3-8b", tmp_path / "qwen3-8b")
    port = str(_free_port())
    nodes = [
        start(
            1,
            "generate.py",
            "--compiled-only",
            "--policy=auto",
            str(tmp_path),
            str(tmp_path / "qwen3-8b"),
            options=("--nnodes", "2", "--node-rank", str(node), "--master-addr", "localhost", "--master-port", port),
        )
        for node in range(2)
    ]
    for node in nodes:
        finish(node)
    first, second = (each["qwen3-8b"] for each in written(tmp_path, 2))
    assert first["wrong"] == second["wrong"] == []
    assert first["report"] == second["report"]
    assert any(op == "attention" and "/" in chosen for op, _, chosen in first["ran"])
