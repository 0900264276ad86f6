"""The other end of `processes`: the loop of a worker, which answers requests one after the other."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Answering = Callable[[dict[str, Any]], Mapping[str, Any]]


def serve(start: Callable[[], tuple[Mapping[str, Any], Answering]]) -> None:
    """Answer the JSON requests on standard input, a line each, until it ends.

    `start` gives the first line, which says that the worker has started, and the function that answers. Each answer
    has `error` (None, or what that function raised) and `seconds` besides what the function gives.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr  # libraries print; answers go to a handle of their own
    greeting, answer = start()
    print(json.dumps(greeting), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answered(answer, json.loads(line))), file=answers, flush=True)


def _answered(answer: Answering, request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    try:
        given = answer(request)
    except Exception as error:  # whatever a kernel, JAX or libtpu raises is the answer
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    return {"error": None, "seconds": time.monotonic() - started, **given}
