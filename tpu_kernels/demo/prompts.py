"""What the bundled model is asked to continue: four lengths, in the language that it was taught."""

from __future__ import annotations

PROMPTS = (
    "The class",
    "A module is an object that",
    "When an exception occurs in the body of a function, the interpreter",
    "The try statement specifies exception handlers and cleanup code for a group of statements. When no "
    "exception occurs in the try clause, no exception handler is executed. When an exception occurs in the "
    "try suite, a search for an exception handler is started. This search inspects the except clauses in "
    "turn until one is found that matches the exception. An expression-less except clause, if present, must "
    "be last; it matches any exception. For an except clause with an expression, that expression is",
)
