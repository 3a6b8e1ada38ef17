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

import logging
import math
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import h11
import numpy as np
import orjson
from anyio import to_thread
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from safexplain.errors import RequestError
from safexplain.serve.inputs import client_of
from safexplain.serve.protocol import (
    EXPLANATION,
    INPUT,
    Intake,
    Operation,
    RequestV1,
    RequestV2,
    explain_v1,
    headers,
    infer_v2,
    metadata_v2,
    predict_v1,
)
from safexplain.serve.service import Problem, Service, problem_of

__all__ = ["Connection", "app", "from_environment", "respond", "router"]

HEAD_SECONDS = 10.0
"""In which the head of a request must have come."""

_log = logging.getLogger("safexplain.serve")
_PROBLEM = "application/problem+json"


def router(service: Service) -> APIRouter:
    """The routes of a service, for an application that exists already, which closes the service."""
    routes, intake, name = APIRouter(), Intake(service), service.name

    def add(path: str, operation: Operation, called: str, summary: str, openapi: dict[str, Any]) -> None:
        async def endpoint(request: Request) -> Response:
            return await respond(request, intake, called, operation)

        routes.add_api_route(
            path, endpoint, methods=["POST"], operation_id=called, summary=summary, response_class=Response,
            openapi_extra=openapi, tags=["explanations"],
        )  # fmt: skip

    shape = service.now.shape or (3,)
    shape = shape if math.prod(shape) <= 64 else (3,)  # of an example that a person can read
    row, zeros, every = np.full(shape, 0.5).tolist(), np.zeros(shape).tolist(), [1, *shape]
    tensor = {"shape": every, "datatype": "FP32"}
    asked = {"name": INPUT, **tensor, "data": [0.5] * math.prod(shape)}
    told = {"name": EXPLANATION, **tensor, "data": [0.0] * math.prod(shape)}
    v1 = partial(_described, RequestV1, {"instances": [row]})
    said = "Explain the class that the model predicts"
    add(f"/v1/models/{name}:explain", explain_v1, "explain", said, v1({"explanations": [zeros]}))
    add(f"/v1/models/{name}:predict", predict_v1, "predict", "Predict classes", v1({"predictions": [1]}))
    v2 = _described(RequestV2, {"inputs": [asked]}, {"outputs": [told]})
    add(f"/v2/models/{name}/infer", infer_v2, "infer", "Explain and predict, with the tensors of V2", v2)

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


def app(service: Service) -> FastAPI:
    """An application of its own, with a page about the interface at /docs; it closes the service at its end."""

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
    made.include_router(router(service))

    async def unknown(request: Request, error: HTTPException) -> Response:
        detail = f"{request.method} {request.url.path} is not known here; /docs lists what is"
        return _problem(Problem(error.status_code, "http", str(error.detail), detail), request)

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("%s failed: %s", request.url.path, type(error).__name__)
        return _problem(problem_of(error), request)

    made.add_exception_handler(HTTPException, unknown)
    made.add_exception_handler(Exception, failed)
    return made


def from_environment() -> FastAPI:
    """The application of the service that SAFEXPLAIN_SERVE describes, for workers: `uvicorn --factory`."""
    return app(Service.from_environment())


class Connection(H11Protocol):  # type: ignore[misc]
    """uvicorn's HTTP/1.1, which also ends a connection on which the head of a request does not come to its end."""

    _late: Any = None

    def connection_made(self, transport: Any) -> None:
        """The time runs from here."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """The time runs as long as no head is complete, also of a later request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """There is nothing to wait for."""
        super().connection_lost(error)
        if self._late is not None:
            self._late.cancel()

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            if self._late is not None:
                self._late.cancel()
                self._late = None
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.abort)


async def respond(request: Request, intake: Intake, called: str, operation: Operation) -> Response:
    """The response to a request of JSON, whichever of Starlette's applications it came to; it raises nothing.

    Args:
        request: whose body nobody has read.
        intake: of the service.
        called: the operation's name, for metrics and audit log.
        operation: what is asked.
    """
    service, client = intake.service, ""
    try:
        client = _client(request)
        _check(request, service.now.bounds.size)
        async with intake.body(request.stream(), client) as body:

            def answered() -> tuple[bytes, dict[str, str]]:
                content, answer = operation(service, service.now.bounds.load(body), client)
                return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), headers(answer)

            content, said = await intake.answer(client, answered)
        return Response(content, media_type="application/json", headers=said)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:  # whatever happened, the client is told no more than `problem_of` says
        return _problem(service.refused(called, client, error), request)


def _client(request: Request) -> str:
    """Whose request it is: the authenticated user's, else the header's.

    Raises:
        RequestError: it comes from the page of another site, with the cookies of whoever looks at it (403).
    """
    origin = request.headers.get("origin")
    if origin and "cookie" in request.headers:
        own = {request.headers.get(name) for name in ("host", "x-forwarded-host")}
        if urlsplit(origin).netloc not in own:
            raise RequestError(f"Origin: expected this site's own beside cookies, got {origin:.200}", status=403)
    user, name = request.scope.get("user"), ""
    if user is not None and getattr(user, "is_authenticated", False):
        for attribute in ("identity", "username", "display_name"):
            with suppress(AttributeError, NotImplementedError):
                name = name or str(getattr(user, attribute) or "")
        if not name:
            raise RequestError("the authenticated user has no name", status=403)
    return client_of(request.headers.getlist("x-client-id"), name)


def _check(request: Request, most: int) -> None:
    """What the head says about the body.

    Raises:
        RequestError: it is no JSON, or compressed (415), or too large (413).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(f"Content-Type: expected application/json, got {kind[:80] or 'none'}", status=415)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("expected a body that is not compressed", status=415)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise RequestError(f"expected a body of at most {most:,} bytes, got {int(declared):,}", status=413)


def _problem(problem: Problem, request: Request) -> Response:
    said = {"Cache-Control": "no-store"} | ({"Retry-After": str(problem.retry_after)} if problem.retry_after else {})
    content = orjson.dumps({**problem.to_dict(), "instance": request.url.path})
    return Response(content, problem.status, media_type=_PROBLEM, headers=said)


def _described(model: Any, given: Any, back: Any) -> dict[str, Any]:
    """A route in the OpenAPI document, with an example of a request and of its answer."""
    schema = model.model_json_schema()
    kinds = schema.pop("$defs", {})

    def whole(part: Any) -> Any:
        """With definitions where they are referred to, as they have no place of their own in the document."""
        if isinstance(part, dict):
            named = part.get("$ref", "").rpartition("/")[2]
            return whole(kinds[named]) if named else {name: whole(value) for name, value in part.items()}
        return [whole(one) for one in part] if isinstance(part, list) else part

    client = {"name": "X-Client-Id", "in": "header", "schema": {"type": "string"}, "example": "clinic-7"}
    answer = {"application/json": {"schema": {"type": "object"}, "example": back}}
    refusal = {_PROBLEM: {"schema": {"type": "object"}}}
    return {
        "parameters": [client],
        "requestBody": {"required": True, "content": {"application/json": {"schema": whole(schema), "example": given}}},
        "responses": {
            "200": {"description": "Answered", "content": answer},
            "default": {"description": "Refused: `detail` says why, `field` where", "content": refusal},
        },
    }
