"""KServe (0.20 and 0.21): a model that its `ModelServer` serves, and a command for a container.

    kserve.ModelServer().start([HardenedModel(Service.load("model.pt2", "certificate.json"))])
    python -m safexplain.serve.kserve --model model.pt2 --certificate certificate.json --http_port 8080

    POST /v1/models/model:explain, :predict    POST /v2/models/model/infer    gRPC ModelInfer (V2)

Questions over HTTP are answered by the routes of `safexplain.serve.http`, which `HardenedModel` registers before
KServe's own: these copy the headers of a request into the answer (`DataPlane.explain`: `response_headers = headers`),
Authorization and cookies included, drop the fields of a V2 request that they do not know, and write exceptions into
responses. KServe's hook `predict` answers gRPC alone.

A container has one process (`--workers 1`): scale by replicas, which share a ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any, NoReturn

from safexplain.errors import MissingExtraError, RequestError, SafexplainError
from safexplain.serve.http import router
from safexplain.serve.inputs import client_of
from safexplain.serve.loading import SETTINGS
from safexplain.serve.protocol import Intake, infer_v2, metadata_v2
from safexplain.serve.service import Service

try:
    import kserve
    from fastapi import HTTPException
    from grpc import StatusCode
    from grpc_interceptor.exceptions import GrpcException
    from kserve import model_server
except ImportError as error:
    raise MissingExtraError(
        f'serving with KServe needs {error.name}, which is not installed: pip install "safexplain[kserve]"',
        name=error.name,
    ) from error

__all__ = ["HardenedModel", "main"]

_STATUS = {
    403: StatusCode.PERMISSION_DENIED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    503: StatusCode.UNAVAILABLE,
}


class HardenedModel(kserve.Model):  # type: ignore[misc]
    """A service as a model of KServe, under the service's name; the server does not close it.

    Args:
        service: which.
    """

    def __init__(self, service: Service) -> None:
        super().__init__(service.name)
        self.service, self.intake = service, Intake(service)
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

    async def explain(self, payload: Any, headers: dict[str, str] | None = None) -> NoReturn:
        """Nothing: KServe would copy the headers of the request into the answer."""
        raise HTTPException(404, f"{self.name} answers over HTTP under its own name alone")

    async def predict(self, payload: Any, headers: dict[str, str] | None = None, response_headers: Any = None) -> Any:
        """The V2 tensor `input` -> `explanation` and `label`, over gRPC.

        Raises:
            GrpcException: it is not answered; the details are for the client.
            HTTPException: it came by one of KServe's own routes.
        """
        if not (isinstance(payload, kserve.InferRequest) and payload.from_grpc):
            return await self.explain(payload)
        client = ""
        try:
            client = client_of([value for name, value in (headers or {}).items() if name == "x-client-id"])
            reply = await self.intake.answer(client, lambda: infer_v2(self.service, _payload(payload), client))
        except Exception as error:
            problem = self.service.refused("infer", client, error)
        else:
            outputs = [kserve.InferOutput(**one) for one in reply.content.pop("outputs")]
            named = reply.content.pop("id", "")
            return kserve.InferResponse(response_id=named, infer_outputs=outputs, **reply.content)
        status = _STATUS.get(problem.status, StatusCode.INVALID_ARGUMENT)
        raise GrpcException(status_code=status, details=problem.detail)

    def get_input_types(self) -> list[dict[str, Any]]:
        """The tensor `input`."""
        return list(metadata_v2(self.service)["inputs"])

    def get_output_types(self) -> list[dict[str, Any]]:
        """The tensors `explanation` and `label`."""
        return list(metadata_v2(self.service)["outputs"])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a HardenedModel stays in its process: serve with --workers 1, and scale by replicas that share a ledger"
        )


async def _no_version() -> None:
    """In the place of KServe's route, which answers the same after it has written what it cannot read into the log."""
    raise HTTPException(501, "versions of a model cannot be asked for")


def _payload(request: kserve.InferRequest) -> dict[str, Any]:
    """The JSON of a V2 request that KServe has read, gRPC's raw contents included."""
    payload: dict[str, Any] = {"inputs": [], "parameters": dict(request.parameters or {}), "id": request.id or ""}
    for tensor in request.inputs:
        try:
            data = tensor.data if tensor.data else tensor.as_numpy().reshape(-1)
        except Exception:
            raise RequestError(f"{tensor.name:.80}: the contents do not fit shape and datatype", field="data") from None
        one = {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "data": data}
        payload["inputs"].append({**one, "parameters": dict(tensor.parameters or {})})
    if request.request_outputs:
        payload["outputs"] = [{"name": o.name, "parameters": o.parameters or {}} for o in request.request_outputs]
    return payload


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a model with KServe: the command of a container.

    Besides KServe's own options there are those of `Service.load` that say where something is; all others are read from
    the environment variable SAFEXPLAIN_SERVE, a JSON object.
    """
    parser = argparse.ArgumentParser(prog="python -m safexplain.serve.kserve", parents=[model_server.parser])
    own = parser.add_argument_group(f"what is served (other arguments of Service.load: {SETTINGS}, as JSON)")
    files = {
        "model": "the model's file",
        "certificate": "its certificate",
        "public_key": "of who signed the certificate (PEM)",
        "public": "public rows",
        "ledger": "URL of the ledger that counts questions; several replicas share one",
    }
    for name, said in files.items():
        own.add_argument(f"--{name}", help=said)
    given = parser.parse_args(arguments)
    try:
        named = {name: getattr(given, name) for name in files if getattr(given, name) is not None}
        settings = {"name": given.model_name, **json.loads(os.environ.get(SETTINGS) or "{}"), **named}
    except (ValueError, TypeError):
        parser.exit(2, f"not served: {SETTINGS}: expected a JSON object\n")
    try:
        service = Service.load(**settings)
    except (SafexplainError, TypeError) as error:
        parser.exit(2, f"not served: {error}\n")
    with service:
        server = kserve.ModelServer(http_port=given.http_port, grpc_port=given.grpc_port, workers=given.workers)
        server.start([HardenedModel(service)])


if __name__ == "__main__":
    main()
