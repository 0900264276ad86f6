"""The bundled model writes through Hub kernels. Without a TPU: `tpu-kernels emulate examples/generate.py`."""

from transformers import AutoModelForCausalLM, AutoTokenizer

from tpu_kernels import enable_tpu_kernels
from tpu_kernels.demo import demo_model_path

tokenizer = AutoTokenizer.from_pretrained(demo_model_path())
model = AutoModelForCausalLM.from_pretrained(demo_model_path(), dtype="float32", device_map="tpu")
report = enable_tpu_kernels(model)
inputs = tokenizer("The value of the expression is", return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=28)
print(tokenizer.decode(output[0]))
print(report)
