"""The service over HTTP, with FastAPI or any Starlette application: V1 and V2 routes, health, metrics."""

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
from safexplain.serve.inputs import client_name
from safexplain.serve.protocol import (
    EXPLANATION,
    INPUT,
    Intake,
    Operation,
    RequestV1,
    RequestV2,
    explain_v1,
    infer_v2,
    metadata_v2,
    predict_v1,
)
from safexplain.serve.service import Problem, Service, problem_of

__all__ = ["Connection", "app", "from_environment", "respond", "router"]

HEAD_SECONDS = 10.0  # time limit of a request's head

_log = logging.getLogger("safexplain.serve")
_PROBLEM = "application/problem+json"


def router(service: Service) -> APIRouter:
    """The routes of a service, for an existing application, which must close the service."""
    routes, intake, name = APIRouter(), Intake(service), service.name

    def add_post(path: str, operation: Operation, operation_id: str, summary: str, openapi: dict[str, Any]) -> None:
        async def endpoint(request: Request) -> Response:
            return await respond(request, intake, operation_id, operation)

        routes.add_api_route(
            path, endpoint, methods=["POST"], operation_id=operation_id, summary=summary, response_class=Response,
            openapi_extra=openapi, tags=["explanations"],
        )  # fmt: skip

    shape = service.now.shape or (3,)
    shape = shape if math.prod(shape) <= 64 else (3,)  # keeps the example readable
    row, zeros = np.full(shape, 0.5).tolist(), np.zeros(shape).tolist()
    tensor = {"shape": [1, *shape], "datatype": "FP32"}
    request_tensor = {"name": INPUT, **tensor, "data": [0.5] * math.prod(shape)}
    response_tensor = {"name": EXPLANATION, **tensor, "data": [0.0] * math.prod(shape)}
    v1 = partial(_openapi, RequestV1, {"instances": [row]})
    summary = "Explain the class that the model predicts"
    add_post(f"/v1/models/{name}:explain", explain_v1, "explain", summary, v1({"explanations": [zeros]}))
    add_post(f"/v1/models/{name}:predict", predict_v1, "predict", "Predict classes", v1({"predictions": [1]}))
    v2 = _openapi(RequestV2, {"inputs": [request_tensor]}, {"outputs": [response_tensor]})
    add_post(f"/v2/models/{name}/infer", infer_v2, "infer", "Explain and predict, with the tensors of V2", v2)

    def add_get(path: str, answer: Callable[[], tuple[Any, int]], summary: str) -> None:
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

    add_get("/health/live", lambda: ({"status": "live"}, 200), "Is the process alive?")
    add_get("/health/ready", ready, "Can it answer, and from which certificate?")
    add_get("/v2/health/live", lambda: ({"live": True}, 200), "V2: is the server alive?")
    add_get("/v2/health/ready", is_ready, "V2: can it answer?")
    add_get(f"/v1/models/{name}", lambda: (is_ready(name=name)[0], 200), "V1: can the model answer?")
    add_get(f"/v2/models/{name}", lambda: (metadata_v2(service), 200), "V2: the model's tensors")
    add_get(f"/v2/models/{name}/ready", lambda: is_ready(name=name), "V2: can the model answer?")

    async def metrics() -> Response:
        text, kind = await to_thread.run_sync(service.metrics.text)
        return Response(text, headers={"Content-Type": kind})

    routes.add_api_route(
        "/metrics", metrics, methods=["GET"], summary="Prometheus", response_class=Response, tags=["health"]
    )
    return routes


def app(service: Service) -> FastAPI:
    """An application with documentation at /docs, which closes the service when it ends."""

    @asynccontextmanager
    async def closing(_: FastAPI) -> Any:
        yield
        await to_thread.run_sync(service.close)

    made = FastAPIOffline(
        title="Hardened explanations",
        description="Explanations of the predicted class, under a certificate. The server decides what is explained.",
        version=service.digest[:12],
        lifespan=closing,
    )
    made.include_router(router(service))

    async def not_found(request: Request, error: HTTPException) -> Response:
        detail = f"{request.method} {request.url.path} is not a route of this service; /docs lists them"
        return _problem(Problem(error.status_code, "http", str(error.detail), detail), request)

    async def failed(request: Request, error: Exception) -> Response:
        _log.error("%s failed: %s", request.url.path, type(error).__name__)
        return _problem(problem_of(error), request)

    made.add_exception_handler(HTTPException, not_found)
    made.add_exception_handler(Exception, failed)
    return made


def from_environment() -> FastAPI:
    """The application of the service in SAFEXPLAIN_SERVE, for workers: `uvicorn --factory`."""
    return app(Service.from_environment())


class Connection(H11Protocol):  # type: ignore[misc]
    """uvicorn's HTTP/1.1 with a time limit for the head of a request."""

    _timer: Any = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Start or stop the timer, for later requests too."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(error)
        self._watch(ends=True)

    def _watch(self, ends: bool = False) -> None:
        waits = self.conn.their_state is h11.IDLE and not ends
        if waits and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        elif self._timer is not None and not waits:
            self._timer = self._timer.cancel()  # None


async def respond(request: Request, intake: Intake, name: str, operation: Operation) -> Response:
    """The response to an unread JSON request to any Starlette application; `name` is for the metrics."""
    service, client = intake.service, ""
    try:
        client = _client(request)
        _check_head(request, service.now.bounds.size)
        async with intake.body(request.stream(), client) as body:

            def ask() -> tuple[bytes, dict[str, str]]:
                content, answer = operation(service, service.now.bounds.load(body), client)
                fields = {"X-Safexplain-Certificate": answer.certificate, "Cache-Control": "no-store"}
                fields |= {"X-Safexplain-Uncertified": "true"} if answer.uncertified else {}
                return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), fields

            content, fields = await intake.answer(client, ask)
        return Response(content, media_type="application/json", headers=fields)
    except ClientDisconnect:
        return Response(status_code=499)
    except Exception as error:
        return _problem(service.record_problem(name, client, error), request)


def _client(request: Request) -> str:
    """The client of a request: the authenticated user, or else the header; RequestError (403) if a page of another site
    sent it with cookies, or the user has no name."""
    origin = request.headers.get("origin")
    if origin and "cookie" in request.headers:
        own = {request.headers.get(name) for name in ("host", "x-forwarded-host")}
        if urlsplit(origin).netloc not in own:
            raise RequestError(f"Origin: expected this site in a request with cookies, got {origin:.200}", status=403)
    user, name = request.scope.get("user"), ""
    if user is not None and getattr(user, "is_authenticated", False):
        for attribute in ("identity", "username", "display_name"):
            with suppress(AttributeError, NotImplementedError):
                name = name or str(getattr(user, attribute) or "")
        if not name:
            raise RequestError("the authenticated user has no name", status=403)
    return client_name(request.headers.getlist("x-client-id"), name)


def _check_head(request: Request, limit: int) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(f"Content-Type: expected application/json, got {kind[:80] or 'none'}", status=415)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("expected a body without compression", status=415)
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise RequestError(f"expected a body of at most {limit:,} bytes, got {int(declared):,}", status=413)


def _problem(problem: Problem, request: Request) -> Response:
    fields = {"Cache-Control": "no-store"} | ({"Retry-After": str(problem.retry_after)} if problem.retry_after else {})
    content = orjson.dumps({**problem.to_dict(), "instance": request.url.path})
    return Response(content, problem.status, media_type=_PROBLEM, headers=fields)


def _openapi(model: Any, request: Any, response: Any) -> dict[str, Any]:
    schema = model.model_json_schema()
    kinds = schema.pop("$defs", {})

    def inlined(part: Any) -> Any:
        if isinstance(part, dict):
            reference = part.get("$ref", "").rpartition("/")[2]
            return inlined(kinds[reference]) if reference else {name: inlined(value) for name, value in part.items()}
        return [inlined(item) for item in part] if isinstance(part, list) else part

    client = {"name": "X-Client-Id", "in": "header", "schema": {"type": "string"}, "example": "clinic-7"}
    body = {"application/json": {"schema": inlined(schema), "example": request}}
    answer = {"application/json": {"schema": {"type": "object"}, "example": response}}
    refusal = {_PROBLEM: {"schema": {"type": "object"}}}
    return {
        "parameters": [client],
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {"description": "Answered", "content": answer},
            "default": {"description": "Refused: `detail` has the reason, `field` the place", "content": refusal},
        },
    }
