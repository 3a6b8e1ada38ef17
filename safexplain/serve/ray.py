"""A service as a Ray Serve application: several replicas, one ledger, the routes of `safexplain.serve.http`.

    application = deployment("/srv/model.pt2", "/srv/certificate.json", ledger="postgresql://...", replicas=4)
    serve.run(application)                              # or `serve run module:application`

Only settings travel through Ray: each replica loads a service of its own, with the key of its environment
(SAFEXPLAIN_NOISE_KEY) or of a file. Answers are a function of key, certificate and question, so replicas agree without
talking; what they must share is the ledger.
"""

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
    """An application for `ray.serve.run`, whose replicas answer over HTTP as `safexplain serve` does.

    Args:
        model: Path of the model file, the same on every node.
        certificate: Path of its certificate; None: as in `Service.load`.
        replicas: How many.
        actor: Ray's `ray_actor_options`: `num_cpus`, `num_gpus`, `runtime_env`, ...
        audit_log: File of each node for the log of who asked when (JSON lines); None: it is not written.
        settings: Arguments of `Service.load`. `ledger` must be a URL that every replica reaches, `key` a path.

    Raises:
        ConfigurationError: several replicas without a shared ledger, or a setting that would send the key, or an object
            of this process, through Ray.
    """
    variables = (actor or {}).get("runtime_env", {}).get("env_vars", {})
    if isinstance(settings.get("key"), bytes | bytearray) or KEY_VARIABLE in variables:
        raise ConfigurationError(
            f"Ray shows a deployment's settings: give the path of the key's file, or set {KEY_VARIABLE} on every node"
        )
    ledger = settings.get("ledger")
    if not isinstance(ledger, str | None) or (replicas > 1 and ledger is None):
        raise ConfigurationError(
            "each replica would grant a client a whole budget: give the URL of one ledger that all of them open "
            '(ledger="postgresql://..."; on one machine also "sqlite:///spent.sqlite")'
        )
    *files, asked = (None if file is None else str(file) for file in (model, certificate, audit_log))

    def build() -> Any:
        """Made in the replica, where the service lives."""
        from safexplain.serve.http import app
        from safexplain.serve.service import Service
        from safexplain.serve.telemetry import audit_log

        if asked is not None:
            audit_log.addHandler(WatchedFileHandler(asked))
            audit_log.setLevel(logging.INFO)
            audit_log.propagate = False
        return app(Service.load(*files, **settings))

    return serve.deployment(
        serve.ingress(build)(),
        name=settings.get("name", "model"),
        num_replicas=replicas,
        max_ongoing_requests=64,  # of each replica; Ray lets others wait
        ray_actor_options=dict(actor or {}),
    ).bind()
