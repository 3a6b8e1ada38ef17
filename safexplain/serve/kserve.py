"""KServe (0.20 and 0.21): a model that its `ModelServer` serves, and a command for a container.

    kserve.ModelServer().start([HardenedModel(Service.load("model.pt2", "certificate.json"))])
    python -m safexplain.serve.kserve --model model.pt2 --certificate certificate.json --http_port 8080

    POST /v1/models/model:explain, :predict    POST /v2/models/model/infer    gRPC ModelInfer (V2)

Questions over HTTP are answered by the routes of `safexplain.serve.http`, which `HardenedModel` registers before
KServe's own: these copy the headers of a request into the answer (`DataPlane.explain`: `response_headers = headers`),
Authorization and cookies included, drop the fields of a V2 request that they do not know instead of refusing them, and
write exceptions into responses. The hooks of KServe (`explain`, `predict`) answer gRPC, and HTTP where the model is
registered under a second name; they leave no header to copy.

A container has one process (`--workers 1`): scale by replicas, which share a ledger and Redis.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from safexplain.errors import MissingExtraError, RequestError, SafexplainError
from safexplain.serve.http import router
from safexplain.serve.protocol import Problem, client_of, explain_v1, infer_v2, metadata_v2, predict_v1, problem_of
from safexplain.serve.service import SETTINGS, Service

try:
    import kserve
    from fastapi import HTTPException
    from grpc import StatusCode
    from grpc_interceptor.exceptions import GrpcException
    from kserve import model_server
    from kserve.model import InferenceVerb
except ImportError as error:
    raise MissingExtraError(
        f'serving with KServe needs {error.name}, which is not installed: pip install "safexplain[kserve]"',
        name=error.name,
    ) from error

__all__ = ["HardenedModel", "main"]

_CLIENT = "x-client-id"
_STATUS = {403: StatusCode.PERMISSION_DENIED, 429: StatusCode.RESOURCE_EXHAUSTED, 503: StatusCode.UNAVAILABLE}


class HardenedModel(kserve.Model):  # type: ignore[misc]
    """A service as a model of KServe, under the service's name; the server does not close it.

    Args:
        service: which.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service.name)
        self.service = service
        self.ready = True

    def start(self) -> None:
        """Register the routes of the service, before KServe registers its own; `ModelServer.start` calls this."""
        super().start()
        routes = router(self.service)
        routes.add_api_route(f"/v2/models/{self.name}/versions/{{version}}/infer", _no_version, methods=["POST"])
        model_server.app.include_router(routes)

    async def healthy(self) -> bool:
        """Whether the service can answer."""
        return self.ready and (await asyncio.to_thread(self.service.ready))["status"] != "unavailable"

    async def __call__(
        self, body: Any, headers: dict[str, str] | None = None, verb: InferenceVerb = InferenceVerb.PREDICT
    ) -> Any:
        """Answer a question; `headers` is emptied, because KServe writes what stays in it into the response."""
        client = {_CLIENT: headers[_CLIENT]} if headers and _CLIENT in headers else {}
        if headers:
            headers.clear()
        return await super().__call__(body, client, verb)

    async def explain(self, payload: Any, headers: dict[str, str] | None = None) -> Any:
        """{"instances": [...]} -> {"explanations": [...]}."""
        return await _answered(explain_v1, self.service, payload, headers)

    async def predict(self, payload: Any, headers: dict[str, str] | None = None, response_headers: Any = None) -> Any:
        """{"instances": [...]} -> {"predictions": [...]}, or the V2 tensor `input` -> `explanation` and `label`."""
        if not isinstance(payload, kserve.InferRequest):
            return await _answered(predict_v1, self.service, payload, headers)
        answer = await _answered(_infer, self.service, payload, headers)
        outputs = [
            kserve.InferOutput(name=one["name"], shape=one["shape"], datatype=one["datatype"], data=one["data"])
            for one in answer["outputs"]
        ]
        return kserve.InferResponse(
            response_id=answer.get("id", ""),
            model_name=answer["model_name"],
            model_version=answer["model_version"],
            infer_outputs=outputs,
            parameters=answer["parameters"],
        )

    def get_input_types(self) -> list[dict[str, Any]]:
        """The tensor `input`."""
        inputs: list[dict[str, Any]] = metadata_v2(self.service)["inputs"]
        return inputs

    def get_output_types(self) -> list[dict[str, Any]]:
        """The tensors `explanation` and `label`."""
        outputs: list[dict[str, Any]] = metadata_v2(self.service)["outputs"]
        return outputs

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a HardenedModel stays in its process: serve with --workers 1, and scale by replicas that share a ledger"
        )


async def _no_version() -> None:
    """In the place of KServe's route, which answers the same after it has written what it cannot read into the log."""
    raise HTTPException(501, "versions of a model cannot be asked for")


async def _answered(
    ask: Callable[[Service, Any, str], dict[str, Any]], service: Service, payload: Any, headers: dict[str, str] | None
) -> dict[str, Any]:
    """An answer, or an error whose words a client may read."""
    try:
        client = client_of([headers[_CLIENT]] if headers and _CLIENT in headers else [])
        return await asyncio.to_thread(ask, service, payload, client)
    except Exception as error:
        problem = problem_of(error)
    raise _error(problem, grpc=isinstance(payload, kserve.InferRequest) and payload.from_grpc)


def _infer(service: Service, request: kserve.InferRequest, client: str) -> dict[str, Any]:
    return infer_v2(service, _payload(request), client)


def _payload(request: kserve.InferRequest) -> dict[str, Any]:
    """The JSON of a V2 request that KServe has read, gRPC's raw contents included."""
    payload: dict[str, Any] = {"inputs": [], "parameters": dict(request.parameters or {})}
    for tensor in request.inputs:
        try:
            data = tensor.data if tensor.data else tensor.as_numpy().reshape(-1)
        except Exception:
            raise RequestError(f"{tensor.name:.80}: the contents do not fit shape and datatype", field="data") from None
        one = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "data": data}
        payload["inputs"].append({**one, "parameters": dict(tensor.parameters or {})})
    if request.id:
        payload["id"] = request.id
    if request.request_outputs:
        payload["outputs"] = [{"name": o.name, "parameters": o.parameters or {}} for o in request.request_outputs]
    return payload


def _error(problem: Problem, *, grpc: bool) -> Exception:
    error: Exception
    if grpc:
        status = StatusCode.INTERNAL if problem.status == 500 else StatusCode.INVALID_ARGUMENT
        error = GrpcException(status_code=_STATUS.get(problem.status, status), details=problem.detail)
    else:
        error = HTTPException(problem.status, problem.to_dict(), dict(problem.headers))
    return error


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a model with KServe: the command of a container.

    Besides KServe's own options there are those of `Service.load` that say where something is; all others are read from
    the environment variable SAFEXPLAIN_SERVE, a JSON object.
    """
    parser = argparse.ArgumentParser(prog="python -m safexplain.serve.kserve", parents=[model_server.parser])
    own = parser.add_argument_group("what is served (other arguments of Service.load: SAFEXPLAIN_SERVE, as JSON)")
    own.add_argument("--model", help="the model's file")
    own.add_argument("--certificate", help="its certificate")
    own.add_argument("--public_key", help="of who signed the certificate (PEM)")
    own.add_argument("--public", help="public rows")
    own.add_argument("--ledger", help="URL of the ledger that counts questions; several replicas share one")
    own.add_argument("--cache", help="redis://..., for several replicas")
    given = parser.parse_args(arguments)
    try:
        settings = json.loads(os.environ.get(SETTINGS) or "{}")
        named = ("model", "certificate", "public_key", "public", "ledger", "cache")
        settings.update({name: value for name in named if (value := getattr(given, name)) is not None})
    except (ValueError, AttributeError):
        parser.exit(2, f"not served: {SETTINGS}: expected a JSON object\n")
    os.environ[SETTINGS] = json.dumps({"name": given.model_name, **settings})
    try:
        service = Service.from_environment()
    except SafexplainError as error:
        parser.exit(2, f"not served: {error}\n")
    with service:
        server = kserve.ModelServer(http_port=given.http_port, grpc_port=given.grpc_port, workers=given.workers)
        server.start([HardenedModel(service)])


if __name__ == "__main__":
    main()
