"""One rank of the tests of equal tokens. Each model is a folder with weights and prompts."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tpu_kernels import emulator, enable_tpu_kernels, tp_config

torch.set_num_threads(1)
torch.set_float32_matmul_precision("highest")
parser = argparse.ArgumentParser()
parser.add_argument("--compiled-only", action="store_true", help="leave out disable_compile=True")
parser.add_argument("--policy", default="always")
parser.add_argument("out", type=Path)
parser.add_argument("folders", type=Path, nargs="+")
options = parser.parse_args()
modes: tuple[dict[str, bool], ...] = ({},) if options.compiled_only else ({"disable_compile": True}, {})
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run(folder: Path) -> dict[str, Any]:
    asked = torch.load(folder / "asked.pt")
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=tp_config(folder, size)
    )
    report = enable_tpu_kernels(model, policy=options.policy, prefill_chunk=16)
    found: dict[str, Any] = {
        "layers": [[entry.path, entry.op, entry.kernel, entry.reason] for entry in report.entries],
        "wrong": [],
        "compilations": {},
    }
    for mode in modes:
        for name, (ids, mask, tokens, logits) in asked.items():
            before = emulator.compilations()
            got = model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens.shape[1],
                min_new_tokens=tokens.shape[1],
                do_sample=False,
                cache_implementation="static",
                return_dict_in_generate=True,
                output_logits=True,
                **mode,
            )
            key = f"{'eager' if mode else 'compiled'} {name}"
            found["compilations"][key] = emulator.compilations() - before
            new = got.sequences[:, ids.shape[1] :]
            error = float((torch.stack(got.logits, dim=1).float().cpu() - logits).abs().max() / logits.abs().max())
            if not torch.equal(new, tokens) or not error < 1e-3:
                found["wrong"].append(f"{key}: {new.tolist()} for {tokens.tolist()}, logits off by {error:.1e}")
    found["ran"] = sorted({(call.op, call.phase, call.chosen) for call in report.calls})
    found["report"] = str(report)
    report.undo()
    found["undone"] = not any("_tpu_kernels_layer" in vars(module) for module in model.modules())
    return found


results = {folder.name: run(folder) for folder in options.folders}
(options.out / f"{rank}.json").write_text(json.dumps(results))
