"""MLServer (1.7.1): a runtime whose V2 tensors are a service's, over REST and gRPC.

    {"name": "digits", "implementation": "safexplain.serve.mlserver.HardenedRuntime", "parallel_workers": 0,
     "parameters": {"uri": "model.pt2", "extra": {"certificate": "certificate.json", "ledger": "postgresql://..."}}}

is a model-settings.json for `mlserver start`; `extra` holds arguments of `Service.load`, and paths of files in it are
relative to that file. POST /v2/models/digits/infer takes the tensor `input` and gives `explanation` and `label`.

What of MLServer would undo the service is refused when the model is loaded: its response cache (it keeps requests with
their headers, and answers beyond the service's count), its adaptive batching (it merges requests of several clients
into one client's), its worker processes (errors in streams and readiness go past the runtime), and its debug mode, on
unless `settings.json` says `"debug": false` (tracebacks in answers). Parameters of a request are refused too, but for
those that MLServer's own client writes about how tensors travel.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import AsyncIterator, Mapping
from typing import Any

from safexplain.errors import ConfigurationError, MissingExtraError, RequestError, UnavailableError
from safexplain.serve.protocol import client_of, infer_v2, metadata_v2, problem_of
from safexplain.serve.service import Service

try:
    import mlserver
    from mlserver import types
    from mlserver.errors import MLServerError
    from mlserver.logging import logger as mlserver_logger
    from mlserver.parallel.worker import Worker
    from mlserver.utils import get_model_uri, to_absolute_path
except ImportError as error:
    raise MissingExtraError(
        f'serving with MLServer needs {error.name}, which is not installed: pip install "safexplain[mlserver]"',
        name=error.name,
    ) from error

__all__ = ["HardenedRuntime"]

_TRANSPORT: dict[str, tuple[Any, ...]] = {
    "content_type": ("np",),
    "binary_data": (True, False),
    "binary_data_output": (True, False),
}
"""Parameters that MLServer's and Triton's clients write by themselves, with the values that change no answer."""

_FILES = ("certificate", "key", "public_key", "public")
"""Arguments of `Service.load` that are paths."""


class HardenedRuntime(mlserver.MLModel):  # type: ignore[misc]
    """A service as a model of MLServer, with the model's name; see the module."""

    _service: Service | None = None
    _loaded = False
    _can_answer = True
    _looking: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether it is loaded, which MLServer sets, and whether the service could answer a moment ago."""
        return self._loaded and self._can_answer

    @ready.setter
    def ready(self, loaded: bool) -> None:
        self._loaded = loaded

    async def load(self) -> bool:
        """Load model and certificate.

        Raises:
            SafexplainError: see `Service.load`, or a setting of MLServer that would undo what the service promises.
        """
        arguments = self._arguments()
        model = await get_model_uri(self.settings)
        certificate = arguments.pop("certificate", None)
        self._service = await asyncio.to_thread(Service.load, model, certificate, name=self.name, **arguments)
        known = metadata_v2(self._service)
        self.inputs = [types.MetadataTensor(**tensor) for tensor in known["inputs"]]
        self.outputs = [types.MetadataTensor(**tensor) for tensor in known["outputs"]]
        self._looking = asyncio.create_task(self._look(self._service))
        return True

    async def _look(self, service: Service) -> None:
        """Keep readiness up to date; MLServer asks for it at every question, and must not wait for the ledger then."""
        while True:
            self._can_answer = (await asyncio.to_thread(service.ready))["status"] != "unavailable"
            await asyncio.sleep(1)

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        """Tensor `input` -> tensors `explanation` and `label`, counted for the client of the request's headers."""
        body: dict[str, Any] = payload.model_dump()
        headers = (body.get("parameters") or {}).pop("headers", None) or {}
        for part in (body, *body.get("inputs", ()), *body.get("outputs", ())):
            _drop_transport(part)
        try:
            if self._service is None:
                raise UnavailableError("the model is not loaded")
            client = client_of([headers["x-client-id"]] if "x-client-id" in headers else [])
            _check_id(body.get("id"), self._service, client)
            answer = await asyncio.to_thread(infer_v2, self._service, body, client)
        except Exception as error:
            problem = problem_of(error)
        else:
            return types.InferenceResponse(**{**answer, "outputs": [_output(one) for one in answer["outputs"]]})
        raise Refused(f"{problem.title}: {problem.detail}", problem.status)

    async def predict_stream(self, payloads: AsyncIterator[types.InferenceRequest]) -> AsyncIterator[Any]:
        """`predict` of each; an error is an answer without tensors, because MLServer writes tracebacks into streams."""
        async for payload in payloads:
            try:
                answer = await self.predict(payload)
            except Refused as refused:
                said = types.Parameters(error=str(refused), status=refused.status_code)
                answer = types.InferenceResponse(model_name=self.name, outputs=[], parameters=said)
            yield answer

    async def unload(self) -> bool:
        """Close the service."""
        if self._looking is not None:
            self._looking.cancel()
        if self._service is not None:
            await asyncio.to_thread(self._service.close)
        return True

    def _arguments(self) -> dict[str, Any]:
        """What `Service.load` is called with besides the model."""
        settings = self.settings
        if isinstance(multiprocessing.current_process(), Worker):
            raise ConfigurationError(
                "parallel_workers: expected 0 in model-settings.json, because errors in streams and readiness go past"
                " the runtime in MLServer's worker processes; the service answers in threads of its own"
            )
        if mlserver_logger.isEnabledFor(logging.DEBUG):  # which MLServer sets so in debug mode, and tells no other way
            raise ConfigurationError(
                "debug: expected false in settings.json, because MLServer writes tracebacks into answers otherwise"
            )
        if settings.cache_enabled:
            raise ConfigurationError(
                "cache_enabled: MLServer's cache answers without counting; the service has its own"
            )
        if settings.max_batch_size > 1:
            raise ConfigurationError(
                "max_batch_size: MLServer's batches mix clients; the service makes its own batches"
            )
        arguments = dict((settings.parameters.extra if settings.parameters else None) or {})
        for name in ("model", "name"):
            if name in arguments:
                raise ConfigurationError(f"{name}: expected as the model's own setting, and not in parameters.extra")
        for name in _FILES:
            if arguments.get(name):
                arguments[name] = to_absolute_path(settings, arguments[name])
        return arguments


class Refused(MLServerError):  # type: ignore[misc]
    """What a client is told; MLServer sends the words and the status."""


def _drop_transport(part: dict[str, Any]) -> None:
    """Without the parameters that only say how tensors travel, and without the member if there are no others."""
    parameters = part.get("parameters")
    if isinstance(parameters, dict):
        for name, harmless in _TRANSPORT.items():
            if parameters.get(name) in harmless:
                del parameters[name]
    if not parameters:
        part.pop("parameters", None)


def _check_id(named: Any, service: Service, client: str) -> None:
    """MLServer writes the name of a request into headers of the answer."""
    if isinstance(named, str) and not (named.isascii() and named.isprintable()):
        error = RequestError("id: expected printable ASCII, which MLServer can write into a header", field="id")
        service.refused("infer", client, error)
        raise error


def _output(tensor: Mapping[str, Any]) -> types.ResponseOutput:
    """Texts as bytes, which gRPC wants; REST writes them as texts again."""
    data = tensor["data"]
    if tensor["datatype"] == "BYTES":
        data = [text.encode() for text in data]
    return types.ResponseOutput(**{**tensor, "data": data})
