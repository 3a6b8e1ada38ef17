"""A service as a Ray Serve application: several replicas, one ledger; only settings pass through Ray."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from safexplain.errors import ConfigurationError, needs_extra
from safexplain.hardening.noise import KEY_VARIABLE

__all__ = ["deployment"]

with needs_extra("ray"):
    from ray import serve


def deployment(
    model: str | Path,
    certificate: str | Path | None,
    *,
    replicas: int = 1,
    actor: Mapping[str, Any] | None = None,
    audit_log: str | Path | None = None,
    **settings: Any,
) -> Any:
    """An application for `ray.serve.run` whose replicas answer over HTTP like `safexplain serve`.

    Args:
        model: Path of the model file, the same on every node.
        certificate: Path of its certificate; None: as in `Service.load`.
        replicas: Their number.
        actor: Ray's `ray_actor_options`: `num_cpus`, `num_gpus`, `runtime_env`, ...
        audit_log: File of each node for the audit log (JSON lines); None: not written.
        settings: Arguments of `Service.load`. `ledger` must be a URL that every replica reaches, `key` a path.

    Raises:
        ConfigurationError: several replicas without a shared ledger, or a key that Ray would display.
    """
    variables = (actor or {}).get("runtime_env", {}).get("env_vars", {})
    if isinstance(settings.get("key"), bytes | bytearray) or KEY_VARIABLE in variables:
        raise ConfigurationError(
            f"key: expected the path of a file, because Ray displays settings; or set {KEY_VARIABLE} on every node"
        )
    ledger = settings.get("ledger")
    if not isinstance(ledger, str | None) or (replicas > 1 and ledger is None):
        raise ConfigurationError(
            "ledger: expected the URL of one ledger for all replicas, because otherwise a client has a budget at each "
            '(ledger="postgresql://..."; on one machine also "sqlite:///spent.sqlite")'
        )
    *files, log_file = (None if file is None else str(file) for file in (model, certificate, audit_log))

    def build() -> Any:
        from safexplain.serve.http import app
        from safexplain.serve.service import Service, audit_log

        if log_file is not None:
            audit_log.addHandler(WatchedFileHandler(log_file))
            audit_log.setLevel(logging.INFO)
            audit_log.propagate = False
        return app(Service.load(*files, **settings))

    return serve.deployment(
        serve.ingress(build)(),
        name=settings.get("name", "model"),
        num_replicas=replicas,
        max_ongoing_requests=64,  # per replica; other requests wait
        ray_actor_options=dict(actor or {}),
    ).bind()
