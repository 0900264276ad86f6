"""The file that lists architectures: a tiny configuration of each, and what plain transformers gets right for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from tpu_kernels.errors import SpecError, explain

CHECKOUT_FILE: Final = Path(__file__).parents[3] / "tests" / "data" / "architectures.json"
"""The list of a source checkout; an installed wheel has none."""


class Architecture(BaseModel):
    """One entry of the file. `full_graph`, `static_cache` and `static_cache_left_padded` say what plain transformers
    does on a CPU: whether the model compiles as one graph, and whether generation with a static cache is right."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: str
    model: str
    arguments: dict[str, Any]
    full_graph: bool
    sdpa: bool
    static_cache: bool
    static_cache_left_padded: bool

    def build(self, attention: str | None = None) -> Any:
        """A new model of this architecture on the CPU, float32, in eval mode."""
        import transformers

        config_class = getattr(transformers, self.config)
        model_class = getattr(transformers, self.model)
        config = config_class(**self.arguments)
        # A language model inside a larger one takes the text part of the configuration.
        if model_class.config_class is type(config).sub_configs.get("text_config"):
            config = config.get_text_config()
        if attention is not None:
            config._attn_implementation = attention
        return model_class(config).float().eval()


def load_architectures(path: Path | None = None) -> dict[str, Architecture]:
    """The architectures of a JSON file by name; without a path, those of the source checkout.

    Raises SpecError where the file is missing or malformed.
    """
    path = path or CHECKOUT_FILE
    try:
        return TypeAdapter(dict[str, Architecture]).validate_json(path.read_bytes())
    except OSError as error:
        raise SpecError(
            explain(
                "there is no list of architectures.",
                needs="a JSON file: {name: {config, model, arguments, full_graph, …}}",
                got=f"{path}: {error.strerror}",
                next_step="pass one with --architectures FILE, or run from a source checkout.",
            )
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(
            explain(
                f"{path} is not a list of architectures.",
                got=f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}",
                next_step="compare it with tests/data/architectures.json of the source.",
            )
        ) from error


def right_in_plain_transformers(architectures: dict[str, Architecture]) -> list[str]:
    """Names of those that compile and that plain static-cache generation gets right on a CPU: those to compare."""
    return [name for name, entry in architectures.items() if entry.full_graph and entry.static_cache]
