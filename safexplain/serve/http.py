"""The service over HTTP, with FastAPI or any Starlette application: V1 and V2 routes, health, metrics.

    from safexplain.serve import Service, app, router
    application = app(Service.load("model.pt2", "certificate.json"))      # of its own
    existing.include_router(router(service), prefix="/explanations")      # beside what is there

    POST /v1/models/model:explain   {"instances": [...]} -> {"explanations": [...]}
    POST /v1/models/model:predict   {"instances": [...]} -> {"predictions": [...]}
    POST /v2/models/model/infer     tensor `input` -> tensors `explanation`, `label`
    GET  /v1/models/model, /v2/models/model, /v2/models/model/ready, /v2/health/live, /v2/health/ready
    GET  /health/live, /health/ready, /metrics

The client is the authenticated user where the application has one (Starlette's AuthenticationMiddleware), else the
header X-Client-Id, which the gateway before the service must set; requests without either share one budget. Errors are
application/problem+json (RFC 9457).
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from safexplain.errors import MissingExtraError, RequestError, SafexplainError
from safexplain.serve.protocol import (
    EXPLANATION,
    INPUT,
    LABEL,
    MOST_BYTES,
    Problem,
    Reader,
    client_of,
    metadata_v2,
    problem_of,
    read,
    read_body,
    read_explain_v1,
    read_infer_v2,
    read_predict_v1,
)
from safexplain.serve.service import Answer, Service

try:
    import orjson
    from anyio import CapacityLimiter, to_thread
    from fastapi import APIRouter, FastAPI, Request, Response
    from fastapi_offline import FastAPIOffline
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect
except ImportError as error:
    raise MissingExtraError(
        f'serving over HTTP needs {error.name}, which is not installed: pip install "safexplain[serve]"',
        name=error.name,
    ) from error

__all__ = ["app", "from_environment", "router"]

BODY_SECONDS = 30.0
"""In which a request's body must have come."""

AT_ONCE = 128
"""Requests that are answered at the same time; more of them wait."""

_log = logging.getLogger("safexplain.serve")
_PROBLEM = "application/problem+json"


def router(service: Service, *, most_bytes: int = MOST_BYTES, body_seconds: float = BODY_SECONDS) -> APIRouter:
    """The routes of a service, for an application that exists already.

    Args:
        service: which; the application closes it.
        most_bytes: of a request's body.
        body_seconds: in which it must have come.
    """
    routes, name = APIRouter(), service.name
    limiter: list[CapacityLimiter] = []  # made in the event loop that it is for

    async def asked(request: Request, reader: Reader, operation: str) -> Response:
        client = ""
        try:
            try:
                client = _client(request)
                body = await _body(request, most_bytes, body_seconds)
            except RequestError as error:
                service.refused(operation, client, error)
                raise
            if not limiter:
                limiter.append(CapacityLimiter(AT_ONCE))
            answered = to_thread.run_sync(_answered, service, reader, operation, body, client, limiter=limiter[0])
            content, marks = await answered
            return Response(content, media_type="application/json", headers=marks)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception as error:  # whatever happened, the client is told no more than `problem_of` says
            if not isinstance(error, SafexplainError):
                _log.error("%s failed: %s", request.url.path, type(error).__name__)
            return _problem(problem_of(error), request)

    def add(path: str, reader: Reader, operation: str, summary: str, openapi: Mapping[str, Any]) -> None:
        async def endpoint(request: Request) -> Response:
            return await asked(request, reader, operation)

        routes.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            operation_id=operation,
            summary=summary,
            response_class=Response,
            openapi_extra=dict(openapi),
            tags=["explanations"],
        )

    examples = _Examples(service)
    add(
        f"/v1/models/{name}:explain",
        read_explain_v1,
        "explain",
        "Explain the class that the model predicts",
        examples.v1("explanations"),
    )
    add(f"/v1/models/{name}:predict", read_predict_v1, "predict", "Predict classes", examples.v1("predictions"))
    add(
        f"/v2/models/{name}/infer", read_infer_v2, "infer", "Explain and predict, with the tensors of V2", examples.v2()
    )

    def plainly(path: str, answer: Callable[[], tuple[Any, int]], summary: str) -> None:
        async def endpoint() -> Response:
            content, status = await to_thread.run_sync(answer)
            return Response(orjson.dumps(content), status, media_type="application/json")

        routes.add_api_route(path, endpoint, methods=["GET"], summary=summary, response_class=Response, tags=["health"])

    def ready() -> tuple[Any, int]:
        found = service.ready()
        return found, 503 if found["status"] == "unavailable" else 200

    def is_ready(**named: str) -> tuple[Any, int]:
        status = ready()[1]
        return {**named, "ready": status == 200}, status

    plainly("/health/live", lambda: ({"status": "live"}, 200), "Is the process alive?")
    plainly("/health/ready", ready, "Can it answer, and from which certificate?")
    plainly("/v2/health/live", lambda: ({"live": True}, 200), "V2: is the server alive?")
    plainly("/v2/health/ready", is_ready, "V2: can it answer?")
    plainly(f"/v1/models/{name}", lambda: (is_ready(name=name)[0], 200), "V1: can the model answer?")
    plainly(f"/v2/models/{name}", lambda: (metadata_v2(service), 200), "V2: the model's tensors")
    plainly(f"/v2/models/{name}/ready", lambda: is_ready(name=name), "V2: can it?")

    async def metrics() -> Response:
        text, kind = await to_thread.run_sync(service.metrics.text)
        return Response(text, headers={"Content-Type": kind})

    routes.add_api_route(
        "/metrics", metrics, methods=["GET"], summary="Prometheus", response_class=Response, tags=["health"]
    )
    return routes


def app(service: Service, *, most_bytes: int = MOST_BYTES, body_seconds: float = BODY_SECONDS) -> FastAPI:
    """An application of its own, with a page that describes the interface at /docs; it closes the service at its end.

    Args:
        service: which.
        most_bytes: of a request's body.
        body_seconds: in which it must have come.
    """

    @asynccontextmanager
    async def closing(_: FastAPI) -> Any:
        yield
        await to_thread.run_sync(service.close)

    made = FastAPIOffline(
        title="Hardened explanations",
        description="Explanations of the class that the model predicts, under a certificate. What is explained, and"
        " how, is the server's to decide.",
        version=service.digest[:12],
        lifespan=closing,
    )
    made.include_router(router(service, most_bytes=most_bytes, body_seconds=body_seconds))

    async def refused(request: Request, error: HTTPException) -> Response:
        detail = f"{request.method} {request.url.path} is not known here; /docs lists what is"
        return _problem(Problem(error.status_code, str(error.detail), detail, "http"), request)

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("%s failed: %s", request.url.path, type(error).__name__)
        return _problem(problem_of(error), request)

    made.add_exception_handler(HTTPException, refused)
    made.add_exception_handler(Exception, failed)
    return made


def from_environment() -> FastAPI:
    """The application of the service that SAFEXPLAIN_SERVE describes, for workers: `uvicorn --factory`.

    The process is taken for its own: Python's collector of garbage no longer looks at what is loaded now, PyTorch and
    the model among it, which takes it a tenth of a second each time.
    """
    made = app(Service.from_environment())
    gc.collect()
    gc.freeze()
    return made


def _answered(
    service: Service, reader: Reader, operation: str, body: bytes, client: str
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the answer. What this client sent before, byte for byte, is not read again."""
    named = hashlib.sha256(f"{operation}\0{client}\0".encode())
    named.update(body)
    known = service.again(named.digest())
    if known is not None:
        write, answer = known
    else:
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            refused = RequestError(f"expected JSON, which has no NaN or Infinity; byte {error.pos} cannot be read")
            service.refused(operation, client, refused)
            raise refused from None
        asked = read(service, operation, client, reader, payload)
        write, answer = asked.write, asked.put(service, client, named.digest())
    return orjson.dumps(write(answer, False), option=orjson.OPT_SERIALIZE_NUMPY), _marks(answer)


def _client(request: Request) -> str:
    """Whose request it is: the authenticated user's, else the header's."""
    user, name = request.scope.get("user"), ""
    if user is not None and getattr(user, "is_authenticated", False):
        for attribute in ("identity", "username", "display_name"):
            with suppress(AttributeError, NotImplementedError):
                name = name or str(getattr(user, attribute) or "")
        if not name:
            raise RequestError("the authenticated user has no name", status=403)
    return client_of([_utf8(value) for value in request.headers.getlist("x-client-id")], name)


def _utf8(value: str) -> str:
    """A header as its sender wrote it: Starlette reads bytes as Latin-1."""
    with suppress(UnicodeDecodeError):
        return value.encode("latin-1").decode()
    return value


async def _body(request: Request, most: int, seconds: float) -> bytes:
    """The request's body.

    Raises:
        RequestError: it is too large (413), too slow (408), compressed or no JSON (415).
    """
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(f"expected application/json, got {kind:.80}", status=415)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("expected a body that is not compressed", status=415)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise RequestError(f"expected a body of at most {most:,} bytes, got {int(declared):,}", status=413)
    try:
        async with asyncio.timeout(seconds):
            return await read_body(request.stream(), most)
    except TimeoutError:
        raise RequestError(f"expected the body within {seconds:g} s", status=408) from None


def _marks(answer: Answer) -> dict[str, str]:
    """Headers of an answer: those of what it was made from, which may be another by now."""
    marks = {"X-Safexplain-Certificate": answer.certificate, "Cache-Control": "no-store"}
    return {**marks, "X-Safexplain-Uncertified": "true"} if answer.uncertified else marks


def _problem(problem: Problem, request: Request) -> Response:
    content = {**problem.to_dict(), "instance": request.url.path}
    return Response(
        orjson.dumps(content),
        problem.status,
        media_type=_PROBLEM,
        headers={**problem.headers, "Cache-Control": "no-store"},
    )


class _Examples:
    """Requests and answers for the page of the interface: zeros of the right shape, or three numbers."""

    def __init__(self, service: Service) -> None:
        shape = service.shape or (3,)
        self.shape = shape if math.prod(shape) <= 64 else (3,)
        self.size = math.prod(self.shape)

    def _nested(self, value: float) -> Any:
        return np.full(self.shape, value).tolist()

    def v1(self, answer: str) -> dict[str, Any]:
        given = {"instances": [self._nested(0.5)]}
        back = {answer: [self._nested(0.0) if answer == "explanations" else 1]}
        return _described(given, back, {"instances": {"type": "array", "items": {}}}, ["instances"])

    def v2(self) -> dict[str, Any]:
        shape = [1, *self.shape]
        given = {"inputs": [{"name": INPUT, "shape": shape, "datatype": "FP32", "data": [0.5] * self.size}]}
        explanation = {"name": EXPLANATION, "datatype": "FP32", "shape": shape, "data": [0.0] * self.size}
        label = {"name": LABEL, "datatype": "INT64", "shape": [1], "data": [1]}
        back = {"model_name": "model", "outputs": [explanation, label]}
        fields = {name: {"type": "array", "items": {"type": "object"}} for name in ("inputs", "outputs")}
        return _described(given, back, {**fields, "id": {"type": "string"}}, ["inputs"])


def _described(given: Any, back: Any, fields: Any, required: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": fields, "required": required, "additionalProperties": False}
    problem = {"description": "Problem", "content": {_PROBLEM: {"schema": {"type": "object"}}}}
    return {
        "parameters": [
            {
                "name": "X-Client-Id",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "example": "clinic-7",
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": given}}},
        "responses": {
            "200": {
                "description": "Answered",
                "content": {"application/json": {"schema": {"type": "object"}, "example": back}},
            },
            "422": {**problem, "description": "The request cannot be answered: `field` names what is wrong"},
            "429": {**problem, "description": "The client's budget is spent: `renews` and Retry-After say until when"},
            "503": {**problem, "description": "Nothing certified can be served, or the ledger cannot be reached"},
        },
    }
