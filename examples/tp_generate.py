"""The bundled model on two TPUs, divided by transformers, with Hub kernels on each of them.

On a TPU host: `tpu-kernels launch --nproc 2 examples/tp_generate.py`.
Without TPUs:  `tpu-kernels launch --nproc 2 --emulate examples/tp_generate.py`.
"""

import os

from transformers import AutoModelForCausalLM, AutoTokenizer, DistributedConfig

from tpu_kernels import enable_tpu_kernels
from tpu_kernels.demo import demo_model_path

config = DistributedConfig(tp_size=int(os.environ["WORLD_SIZE"]))
tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
model = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype="float32", distributed_config=config)
enable_tpu_kernels(model)  # the one line that is not transformers' own
inputs = tokenizer("The value of the expression is", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=28, cache_implementation="static")
if os.environ["RANK"] == "0":
    print(tokenizer.decode(output[0]))
