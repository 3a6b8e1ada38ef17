"""A service as a BentoML service class; `safexplain.serve.http` reads and answers requests, because BentoML logs bodies
and drops unknown fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, needs_extra
from safexplain.serve.http import respond
from safexplain.serve.inputs import numbers
from safexplain.serve.protocol import Intake, Operation, Reply, Strict, explain_v1, predict_v1, validated
from safexplain.serve.service import Service

__all__ = ["service_class"]

with needs_extra("bentoml"):
    from bentoml import Context, IODescriptor, api


class Question(IODescriptor):  # type: ignore[misc]
    """Rows (n, ...) in BentoML's schema; the request is passed on unread."""

    x: NDArray[np.float32]

    @classmethod
    async def from_http_request(cls, request: Any, serde: Any) -> Any:
        """The request."""
        return cls.model_construct(x=request)


class Body(Strict):
    """The body of a request: rows (n, ...)."""

    x: Any


def service_class(model: str | Path, certificate: str | Path | None, **settings: Any) -> type:
    """A class for `bentoml.service` with the endpoints `explain` and `predict`; each worker loads its own service.

    Args:
        model: Path of the model file.
        certificate: Path of its certificate; None: as in `Service.load`.
        settings: Arguments of `Service.load`; `ledger` must be a URL, the same for all workers.

    Raises:
        ConfigurationError: a ledger that is not a URL.
    """
    if not isinstance(settings.get("ledger"), str | None):
        raise ConfigurationError("ledger: expected a URL, because each worker opens the ledger itself")
    maps, labels = _member(explain_v1, "explanations"), _member(predict_v1, "predictions")

    class Explainer:
        """Hardened explanations and labels, charged to the client in X-Client-Id."""

        def __init__(self) -> None:
            self.service = Service.load(model, certificate, **settings)
            self.intake = Intake(self.service)

        @api(route="/explain", input_spec=Question)  # type: ignore[untyped-decorator]
        async def explain(self, x: Any, ctx: Context) -> Any:
            """Hardened maps of the predicted classes, one for each row."""
            return await self._respond(x, ctx, "explain", maps)

        @api(route="/predict", input_spec=Question)  # type: ignore[untyped-decorator]
        async def predict(self, x: Any, ctx: Context) -> Any:
            """The predicted classes."""
            return await self._respond(x, ctx, "predict", labels)

        async def _respond(self, request: Any, ctx: Context, name: str, operation: Operation) -> Any:
            response = await respond(request, self.intake, name, operation)
            ctx.response.status_code = response.status_code  # BentoML overwrites the response's
            return response

        def __is_ready__(self) -> bool:
            return bool(self.service.ready()["status"] != "unavailable")

    return Explainer


def _member(ask: Operation, member: str) -> Operation:
    def operation(service: Service, payload: Any, client: str) -> Reply:
        content, answer = ask(service, {"instances": numbers(validated(Body, payload).x, "x")}, client)
        return content[member], answer

    return operation
