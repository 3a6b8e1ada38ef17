"""A service as a BentoML service class; `examples/serve/bento.py` is a module for `bentoml serve`.

    POST /explain {"x": rows} -> hardened maps        POST /predict {"x": rows} -> labels

BentoML logs bodies that do not fit its types, drops fields that it does not know, and has words of its own for a 503.
So requests are read and answered by `safexplain.serve.http`; errors are problem+json (RFC 9457).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, needs_extra
from safexplain.serve.http import respond
from safexplain.serve.inputs import numbers
from safexplain.serve.protocol import Intake, Operation, Reply, Strict, checked, explain_v1, predict_v1
from safexplain.serve.service import Service

__all__ = ["service_class"]

with needs_extra("bentoml"):
    from bentoml import Context, IODescriptor, api


class Question(IODescriptor):  # type: ignore[misc]
    """Rows (n, ...) in BentoML's schema; the request itself is handed on unread."""

    x: NDArray[np.float32]

    @classmethod
    async def from_http_request(cls, request: Any, serde: Any) -> Any:
        """The request."""
        return cls.model_construct(x=request)


class Rows(Strict):
    """The body of a request."""

    x: Any


def service_class(model: str | Path, certificate: str | Path | None, **settings: Any) -> type:
    """A class for `bentoml.service`, with the endpoints `explain` and `predict`; each worker loads its own service.

    Args:
        model: Path of the model file.
        certificate: Path of its certificate; None: as in `Service.load`.
        settings: Arguments of `Service.load`; `ledger` must be a URL, which several workers share.

    Raises:
        ConfigurationError: a ledger that is no URL.
    """
    if not isinstance(settings.get("ledger"), str | None):
        raise ConfigurationError("workers open the ledger themselves: give its URL")
    maps, labels = _bare(explain_v1, "explanations"), _bare(predict_v1, "predictions")

    class Explainer:
        """Hardened explanations and labels; each question counts against the budget of the client in X-Client-Id."""

        def __init__(self) -> None:
            self.service = Service.load(model, certificate, **settings)
            self.intake = Intake(self.service)

        @api(route="/explain", input_spec=Question)  # type: ignore[untyped-decorator]
        async def explain(self, x: Any, ctx: Context) -> Any:
            """Hardened maps of the classes that the model predicts, one for each row."""
            response = await respond(x, self.intake, "explain", maps)
            ctx.response.status_code = response.status_code  # which BentoML writes over the response's
            return response

        @api(route="/predict", input_spec=Question)  # type: ignore[untyped-decorator]
        async def predict(self, x: Any, ctx: Context) -> Any:
            """The classes that the model predicts."""
            response = await respond(x, self.intake, "predict", labels)
            ctx.response.status_code = response.status_code
            return response

        def __is_ready__(self) -> bool:
            return bool(self.service.ready()["status"] != "unavailable")

    return Explainer


def _bare(ask: Operation, member: str) -> Operation:
    """An operation of V1 that takes {"x": rows} and gives this member of the response alone."""

    def operation(service: Service, payload: Any, client: str) -> Reply:
        content, answer = ask(service, {"instances": numbers(checked(Rows, payload).x, "x")}, client)
        return content[member], answer

    return operation
