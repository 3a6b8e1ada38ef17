"""A service as a BentoML service class.

    # bento.py
    import bentoml
    from safexplain.serve.bentoml import service_class

    Explainer = bentoml.service(service_class("model.pt2", "certificate.json", ledger="sqlite:///spent.sqlite"))

    bentoml serve bento:Explainer --port 3000

    POST /explain {"x": rows} -> hardened maps        POST /predict {"x": rows} -> labels

Each worker loads a service of its own, with the key of its environment (SAFEXPLAIN_NOISE_KEY); several share a ledger.
BentoML writes the body of a request that does not fit its types into its log, with a traceback, drops fields that it
does not know, and has words of its own for a 503. So the body is read here and every answer written here; errors are
problem+json (RFC 9457).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import ConfigurationError, MissingExtraError, RequestError, SafexplainError
from safexplain.serve.protocol import MOST_BYTES, client_of, numbers, problem_of, read_body
from safexplain.serve.service import Answer, Service

try:
    from bentoml import Context, IODescriptor, api
except ImportError as error:
    raise MissingExtraError(
        f'serving by BentoML needs {error.name}, which is not installed: pip install "safexplain[bentoml]"',
        name=error.name,
    ) from error

_log = logging.getLogger("safexplain.serve")


class Question(IODescriptor):  # type: ignore[misc]
    """Rows (n, ...). BentoML shows this in its schema; the request itself is handed on as it came."""

    x: NDArray[np.float32]

    @classmethod
    async def from_http_request(cls, request: Any, serde: Any) -> Any:
        """The body, unread, or None: too long."""
        try:
            return cls.model_construct(x=await read_body(request.stream()))
        except RequestError:
            return cls.model_construct(x=None)


def service_class(model: str | Path, certificate: str | Path | None, **settings: Any) -> type:
    """A class for `bentoml.service`, with the endpoints `explain` and `predict`.

    It is decorated in the module that `bentoml serve` names, where BentoML's own options stand (`workers`, `traffic`,
    `resources`, ...). Requests are answered in threads of their own, whatever `threads` says, so that the service can
    compute several together.

    Args:
        model: Path of the model file.
        certificate: Path of its certificate; None: as in `Service.load`.
        settings: Arguments of `Service.load`. With several workers `ledger` must be a URL, which they share.

    Raises:
        ConfigurationError: a ledger that is no URL.
    """
    ledger = settings.get("ledger")
    if ledger is not None and not isinstance(ledger, str):
        raise ConfigurationError(f"workers open the ledger themselves: give its URL, not a {type(ledger).__name__}")

    class Explainer:
        """Hardened explanations and labels; each question counts against the budget of the client in X-Client-Id."""

        def __init__(self) -> None:
            self.service = Service.load(model, certificate, **settings)

        @api(route="/explain", input_spec=Question)  # type: ignore[untyped-decorator]
        async def explain(self, x: Any, ctx: Context) -> Any:
            """Hardened maps of the classes that the model predicts, one for each row."""
            return await _answered(self.service, self.service.explain, x, ctx)

        @api(route="/predict", input_spec=Question)  # type: ignore[untyped-decorator]
        async def predict(self, x: Any, ctx: Context) -> Any:
            """The classes that the model predicts."""
            return await _answered(self.service, self.service.predict, x, ctx)

        def __is_ready__(self) -> bool:
            return bool(self.service.ready()["status"] != "unavailable")

    return Explainer


async def _answered(service: Service, ask: Callable[..., Answer], body: bytes | None, ctx: Any) -> Any:
    """The response to a request, or the problem that it meets."""
    from anyio import to_thread
    from starlette.responses import Response

    def answer() -> Any:
        found = ask(_rows(body), client=client_of(ctx.request.headers.getlist("x-client-id")))
        made = found.label if found.explanation is None else found.explanation
        return made.tolist() if isinstance(made, np.ndarray) else made

    headers = {"X-Safexplain-Certificate": service.digest, "Cache-Control": "no-store"}
    if service.uncertified:
        headers["X-Safexplain-Uncertified"] = "true"
    try:
        content, status, kind = await to_thread.run_sync(answer), 200, "application/json"
    except Exception as error:
        if not isinstance(error, SafexplainError):
            _log.error("a request to BentoML failed: %s", type(error).__name__)
        problem = problem_of(error)
        content, status, kind = problem.to_dict(), problem.status, "application/problem+json"
        headers |= problem.headers
    ctx.response.status_code = status  # which BentoML writes over the response's
    return Response(json.dumps(content), status, headers, kind)


def _rows(body: bytes | None) -> NDArray[np.float32]:
    """The rows of {"x": rows}.

    Raises:
        RequestError: another field, no JSON, no numbers, or too long.
    """
    if body is None:
        raise RequestError(f"expected a body of at most {MOST_BYTES:,} bytes", status=413)
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("expected JSON; it cannot be read") from None
    if not isinstance(request, dict):
        raise RequestError('expected an object {"x": rows}')
    for field in request:
        if field != "x":
            raise RequestError(
                f"{field[:80]!r} is no part of a request: expected x. What is explained, and how, is the server's to "
                "decide",
                field=field[:80],
            )
    if "x" not in request:
        raise RequestError('expected {"x": rows}', field="x")
    return numbers(request["x"], "x")
