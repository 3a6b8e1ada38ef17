"""Serving hardened explanations: what leaves the service, how often each client may ask, and the platforms it runs on.

    request -> inputs (bounded) -> protocol (payload, checked) -> service: remembered? -> seats, in turn ->
    budget: charged -> model and explainer, in a batch -> remembered -> protocol (listed arrays only) -> answer

`service` is the core, which knows no platform: answers, seats, batches, metrics, and errors as clients see them.
`loading` has its options, model and certificate, `budget` limits questions, and `questions` counts them in a ledger's
database. `inputs` and `protocol` read requests and write V1 and V2. Each platform is one file: `http` (FastAPI, and
`safexplain serve`), `kserve`, `mlserver`, `mlflow`, `ray`, `bentoml`.
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
    """Import names on first use, so that no platform needs another one's packages."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"safexplain.serve.{_HOMES[name]}"), name)
