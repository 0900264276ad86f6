"""How an enabled model generates: chunked prefill and decode steps over a static cache, or the plain way."""
