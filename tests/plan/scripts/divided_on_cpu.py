"""Four ranks on the CPU: they load each model divided by `tp_config` and compare it with the whole one.

    python divided_on_cpu.py RESULT FOLDER…

The processes are forks of one that has imported everything: torchrun's would each import it again.

Rank 0 writes RESULT: {folder's name: [largest difference of logits, tokens equal]}; and "compiled", the difference when
the first model runs as one graph.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tests.support.tensor_parallel import REFERENCE
from tpu_kernels import tp_config

RANKS = 4


@torch.no_grad()
def compare(folder: Path, found: dict[str, Any]) -> None:
    reference = torch.load(folder / REFERENCE)
    ids, tokens = reference["ids"], reference["tokens"]
    config = tp_config(str(folder), dist.get_world_size())
    model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=config, dtype=torch.float32).eval()
    difference = float((model(ids).logits - reference["logits"]).abs().max())
    if not found:  # one alone: it is slow
        forward = torch.compile(model, backend="eager", fullgraph=True)
        found["compiled"] = float((forward(ids, use_cache=False).logits - reference["logits"]).abs().max())
    new = tokens.shape[1] - ids.shape[1]
    got = model.generate(
        ids,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )
    found[folder.name] = [difference, bool(torch.equal(got, tokens))]


def run(rank: int, result: Path, folders: list[Path]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", init_method=f"file://{result}.store", rank=rank, world_size=RANKS)
    found: dict[str, Any] = {}
    for folder in folders:
        compare(folder, found)
    if rank == 0:
        result.write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    result, *folders = map(Path, sys.argv[1:])
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            try:
                run(rank, result, folders)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:  # the others would wait for it
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


main()
