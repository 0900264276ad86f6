"""Train the tiny Qwen3 model that `tpu-kernels demo` runs, on text that ships with Python.

    python examples/train_demo_model.py --steps 2000 --out tpu_kernels/assets/demo_model

The text is Python's own: the help topics of `pydoc_data`, the docstrings of the standard library (read,
not imported), the license and the Zen of Python. Only prose paragraphs are kept, so that the model writes
sentences. It has 1.25 million weights: four layers, four query heads on two key/value heads of size 32, a
byte-level BPE vocabulary of 2048. Training is plain PyTorch on the CPU and takes about ten minutes on one
core. The seed fixes the batches and the first weights; another Python version brings another text.
"""

from __future__ import annotations

import argparse
import ast
import codecs
import os
import random
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

END = "<|endoftext|>"
PAD = "<|pad|>"
SKIPPED_FOLDERS = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "__pycache__",
    "ensurepip",
    "turtledemo",
}


def prose(text: str) -> str:
    """The paragraphs of `text` that read as sentences, one line each, without code, grammar and tables."""
    kept = []
    for block in textwrap.dedent(text).split("\n\n"):
        lines = [line.rstrip() for line in block.splitlines() if line.strip()]
        if not lines or "::=" in block or ">>>" in block or any("  " in line.strip() for line in lines[:3]):
            continue
        paragraph = " ".join(" ".join(lines).split())
        letters = sum(c.isalpha() or c == " " for c in paragraph)
        if len(paragraph) >= 40 and letters >= 0.85 * len(paragraph) and paragraph[-1] in ".:)":
            kept.append(paragraph.removeprefix("* ").removeprefix("- "))
    return "\n\n".join(kept)


def docstrings(stdlib: Path) -> Iterator[str]:
    """Every docstring of the standard library in the order of files, without importing anything."""
    for path in sorted(stdlib.rglob("*.py")):
        if SKIPPED_FOLDERS.intersection(path.relative_to(stdlib).parts) or "encodings" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError as error:
            print(f"left out {path}: {error}")
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= 160:
                    yield text


def documents() -> list[str]:
    """The training text: one string per help topic, docstring, license file and the Zen of Python."""
    from pydoc_data import topics

    stdlib = Path(sysconfig.get_path("stdlib"))
    texts = 2 * [prose(topic) for topic in topics.topics.values()]  # twice: the best prose of all
    texts += [prose(doc) for doc in docstrings(stdlib)]
    license_file = stdlib / "LICENSE.txt"
    if license_file.is_file():
        texts.append(prose(license_file.read_text(encoding="utf-8")))
    zen = next(
        node.value.value
        for node in ast.parse((stdlib / "this.py").read_bytes()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    )
    texts.append(codecs.decode(zen, "rot13"))
    return [text for text in texts if text]


def build_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with <|endoftext|> (begin and end) and <|pad|>; any text round-trips."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained Qwen3ForCausalLM in float32 with tied embeddings."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config)


def train(model: Qwen3ForCausalLM, stream: list[int], args: argparse.Namespace) -> float:
    """Next-token training on random windows of the token stream; returns the smoothed final loss in nats."""
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    tokens = torch.tensor(stream)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    warm_up = max(2, min(args.steps // 10, 100)) / args.steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=args.steps, pct_start=warm_up, final_div_factor=100
    )
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    smooth = float("nan")
    model.train()
    with Progress(*columns) as progress:
        task = progress.add_task("", total=args.steps, loss="")
        for step in range(args.steps):
            starts = torch.randint(0, len(tokens) - args.length, (args.batch,))
            batch = torch.stack([tokens[s : s + args.length] for s in starts.tolist()])
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            smooth = loss.item() if step == 0 else 0.97 * smooth + 0.03 * loss.item()
            progress.update(task, advance=1, loss=f"loss {smooth:.3f}")
            if step % 50 == 0 or step == args.steps - 1:
                progress.console.print(f"step {step:5d}  loss {smooth:.3f}")
    model.eval()
    return smooth


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; `arguments` defaults to those of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tpu_kernels/assets/demo_model"), help="folder to write")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=6, help="windows per step")
    parser.add_argument("--length", type=int, default=384, help="tokens per window")
    parser.add_argument("--vocab", type=int, default=2048, help="size of the vocabulary")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)

    import torch
    from transformers import GenerationConfig

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    texts = documents()
    random.shuffle(texts)
    tokenizer = build_tokenizer(texts, args.vocab)
    stream = [token for text in texts for token in [*tokenizer.encode(text), tokenizer.eos_token_id]]
    model = build_model(tokenizer)
    weights = sum(p.numel() for p in model.parameters())
    print(f"{len(texts)} documents, {sum(map(len, texts))} characters, {len(stream)} tokens; {weights} weights")
    loss = train(model, stream, args)
    print(f"final loss {loss:.3f} nats per token")

    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=50,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(args.out)
    (args.out / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(args.out)
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"wrote {args.out}: {size / 1e6:.2f} MB")
    prompt = tokenizer("The try statement", return_tensors="pt")
    written = model.float().generate(**prompt, max_new_tokens=60, do_sample=False)
    print(tokenizer.decode(written[0]))


if __name__ == "__main__":
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # training needs no accelerator
    main()
