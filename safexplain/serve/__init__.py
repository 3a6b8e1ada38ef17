"""Serving hardened explanations: what leaves the service, and how often each client may ask."""

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
