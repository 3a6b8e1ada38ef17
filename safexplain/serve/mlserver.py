"""A runtime for MLServer (1.7.1) that answers V2 requests from a service; examples/serve/mlserver has its settings."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from collections.abc import AsyncIterator
from typing import Any

from safexplain.errors import ConfigurationError, RequestError, needs_extra
from safexplain.serve.inputs import client_name
from safexplain.serve.protocol import Intake, infer_v2, metadata_v2
from safexplain.serve.service import Service

with needs_extra("mlserver"):
    from mlserver import MLModel, types
    from mlserver.errors import MLServerError
    from mlserver.logging import logger
    from mlserver.parallel.worker import Worker
    from mlserver.utils import get_model_uri, to_absolute_path

# Parameters that clients of MLServer and Triton add automatically, with harmless values
TRANSPORT = {"content_type": ("np",), "binary_data": (True, False), "binary_data_output": (True, False)}


class HardenedRuntime(MLModel):  # type: ignore[misc]
    """A service as a model of MLServer, under the model's name."""

    async def load(self) -> bool:
        """Load model and certificate; errors as `Service.load`, and ConfigurationError for settings of MLServer that
        would bypass the service's protection."""
        settings = self.settings
        if isinstance(multiprocessing.current_process(), Worker):
            raise ConfigurationError("parallel_workers: expected 0, because worker processes hide errors and readiness")
        if logger.isEnabledFor(logging.DEBUG):
            raise ConfigurationError("debug: expected false in settings.json, because answers get tracebacks otherwise")
        if settings.cache_enabled:
            raise ConfigurationError("cache_enabled: expected false, because the cache answers without counting")
        if settings.max_batch_size > 1:
            raise ConfigurationError("max_batch_size: expected at most 1, because batches merge requests of clients")
        extra = {**((settings.parameters and settings.parameters.extra) or {}), "name": self.name}
        for file in {"certificate", "key", "public_key", "public"} & extra.keys():
            extra[file] = to_absolute_path(settings, extra[file])
        service = await asyncio.to_thread(Service.load, await get_model_uri(settings), **extra)
        metadata, self.intake = metadata_v2(service), Intake(service)
        self.inputs = [types.MetadataTensor(**one) for one in metadata["inputs"]]
        self.outputs = [types.MetadataTensor(**one) for one in metadata["outputs"]]
        self.watching = asyncio.create_task(self._watch())
        return True

    async def _watch(self) -> None:
        """Update readiness in the background: MLServer reads it at every question, and must not wait for the ledger."""
        while await asyncio.sleep(1, True):
            self.ready = (await asyncio.to_thread(self.intake.service.ready))["status"] != "unavailable"

    async def unload(self) -> bool:
        """Close the service; MLServer also unloads models that failed to load."""
        if hasattr(self, "watching"):
            self.watching.cancel()
            await asyncio.to_thread(self.intake.service.close)
        return True

    async def predict(self, payload: types.InferenceRequest) -> types.InferenceResponse:
        """Tensor `input` -> tensors `explanation` and `label`, charged to the client in the request's headers."""
        client, body = "", payload.model_dump(exclude_none=True)
        headers = body.get("parameters", {}).pop("headers", {})
        for part in (body, *body["inputs"], *body.get("outputs", ())):
            given = part.pop("parameters", {})
            part["parameters"] = {name: value for name, value in given.items() if value not in TRANSPORT.get(name, ())}
        try:
            name = headers.get("x-client-id")
            client = client_name([] if name is None else [name])
            if "host" in headers and headers.get("content-type", "").partition(";")[0] != "application/json":
                raise RequestError("expected application/json", status=415)  # REST only; web pages can send other types
            if not (body["id"].isascii() and body["id"].isprintable()):
                raise RequestError("id: expected printable ASCII, because MLServer writes it into a header", field="id")
            content, _ = await self.intake.answer(client, lambda: infer_v2(self.intake.service, body, client))
            for one in content["outputs"]:  # gRPC needs texts as bytes, which REST writes as texts
                texts = one["datatype"] == "BYTES"
                one["data"] = [text.encode() for text in one["data"]] if texts else one["data"].tolist()
            return types.InferenceResponse(**content)
        except Exception as error:
            problem = self.intake.service.record_problem("infer", client, error)
        raise MLServerError(f"{problem.title}: {problem.detail}", problem.status)

    async def predict_stream(self, payloads: AsyncIterator[types.InferenceRequest]) -> AsyncIterator[Any]:
        """`predict` each; errors become answers without tensors, because MLServer writes tracebacks into streams."""
        async for payload in payloads:
            try:
                yield await self.predict(payload)
            except MLServerError as error:
                parameters = types.Parameters(error=str(error), status=error.status_code)
                yield types.InferenceResponse(model_name=self.name, outputs=[], parameters=parameters)
