"""Serving: what leaves a service that explains, how often it may be asked, and the platforms that it runs on.

    request -> inputs (bounded) -> protocol (payload, checked) -> service: remembered? -> batches: a seat, in turn ->
    budget: charged -> batches: model and explainer -> remembered -> protocol (listed arrays only) -> answer

`service` is the core, which knows no platform, with what a client is told instead of an answer; `loading` has its
options, model and certificate, `budget` limits questions, which `questions` counts in a ledger's database, `batches`
computes them, `telemetry` says what happened.
`inputs` and `protocol` read what clients send, and write V1 and V2. Every platform is one file beside them: `http`
(FastAPI, and `safexplain serve`), `kserve`, `mlserver`, `mlflow`, `ray`, `bentoml`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from safexplain.errors import needs_extra

__all__ = ["Limits", "Service", "app", "router"]

with needs_extra("serve"):
    import cachetools  # noqa: F401
    import fastapi_offline  # noqa: F401
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401

_HOMES = {"Limits": "budget", "Service": "service", "app": "http", "router": "http"}


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for, so that no platform is needed for another."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"safexplain.serve.{_HOMES[name]}"), name)
