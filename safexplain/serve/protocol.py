"""Payloads of the V1 and V2 inference protocols. A request contains inputs; any other field is refused by name.

V1: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
V2 (Open Inference Protocol): https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from anyio import CapacityLimiter, to_thread
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from safexplain.errors import RequestError, UnavailableError
from safexplain.serve.inputs import numbers
from safexplain.serve.service import Answer, Service

INPUT, EXPLANATION, LABEL, PROBABILITIES = "input", "explanation", "label", "probabilities"

BODY_SECONDS = 30.0  # time limit of a request's body
MAX_BYTES_IN_FLIGHT = 64 << 20  # of all bodies that are being read or answered
MAX_THREADS, MAX_THREADS_PER_CLIENT = 128, 32  # more requests wait

T = TypeVar("T")


class Intake:
    """Requests in progress to a service, of which each client has a share."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._held: Counter[str] = Counter()  # bytes of each client
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads: list[CapacityLimiter] = []  # made in its event loop

    @asynccontextmanager
    async def body(self, stream: AsyncIterator[bytes], client: str) -> AsyncIterator[bytearray]:
        """Read a request's body; its bytes count until the block ends.

        Raises:
            RequestError: longer than `Bounds.size` (413; the rest is not read), or too slow (408).
            UnavailableError: too many bytes in progress, of all clients or of this one.
        """
        body, limit = bytearray(), self.service.now.bounds.size
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for part in stream:
                        self._check_room(client, len(part), len(body))
                        self._held[client] += len(part)
                        body += part
                        if len(body) > limit:
                            raise RequestError(f"expected a body of at most {limit:,} bytes", status=413)
            except TimeoutError:
                raise RequestError(f"expected the body within {BODY_SECONDS:g} s", status=408) from None
            yield body
        finally:
            self._held[client] -= len(body)
            self._held += Counter()  # drops clients without bytes

    def _check_room(self, client: str, more: int, own: int) -> None:
        """Raise UnavailableError if a request with `own` bytes may not have more, of a quarter that it shares with its
        client's other requests, and of the whole that it shares with those of others."""
        for held, limit in ((self._held[client], MAX_BYTES_IN_FLIGHT // 4), (self._held.total(), MAX_BYTES_IN_FLIGHT)):
            if held > own and held + more > limit:
                raise UnavailableError("overloaded: too many bytes of requests in progress; ask again later")

    async def answer(self, client: str, ask: Callable[[], T]) -> T:
        """The result of `ask` in a thread; requests beyond the client's share wait."""
        if not self._threads:
            self._threads.append(CapacityLimiter(MAX_THREADS))
        async with self._turns.setdefault(client, asyncio.Semaphore(MAX_THREADS_PER_CLIENT)):
            return await to_thread.run_sync(ask, limiter=self._threads[0])


class Strict(BaseModel):
    """A JSON object with only the listed members and types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoParameters(Strict):
    """An empty object."""


class RequestV1(Strict):
    """A V1 request."""

    instances: Any = Field(json_schema_extra={"type": "array", "items": {}})


class TensorV2(Strict):
    """The input tensor of a V2 request."""

    name: Literal["input"]
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=8)]
    datatype: Literal["FP64", "FP32", "FP16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
    data: Any = Field(json_schema_extra={"type": "array", "items": {}})
    parameters: NoParameters | None = None


class OutputV2(Strict):
    """A requested tensor."""

    name: Literal["explanation", "label", "probabilities"]
    parameters: NoParameters | None = None


class RequestV2(Strict):
    """A V2 inference request."""

    inputs: Annotated[list[TensorV2], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[OutputV2], Field(max_length=3)] | None = None
    id: Annotated[str, Field(max_length=256)] = ""
    parameters: NoParameters | None = None


M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], payload: Any) -> M:
    """A payload as an instance of the model; RequestError names the wrong field, and quotes no values."""
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = [str(part)[:80] for part in first["loc"] if isinstance(part, str)]
        name = where[-1] if where else ""
        if first["type"] == "extra_forbidden":
            detail = f"{name!r} is not a field of a request; the server decides what is explained, and how"
        else:
            detail = f"{'.'.join(where) or 'the request'}: {first['msg'][:300]}"
        raise RequestError(detail, field=name) from None


Reply = tuple[Any, Answer]  # a response, in JSON types and NumPy arrays, and the answer it was made from

Operation = Callable[[Service, Any, str], Reply]
"""(service, payload, client) -> the response: `explain_v1`, `predict_v1` or `infer_v2`."""


def explain_v1(service: Service, payload: Any, client: str) -> Reply:
    """{"instances": [...]} -> {"explanations": [...]} of the predicted classes, with `probabilities` if enabled.

    The client's budget is charged. Raises RequestError for other fields, and as `Service.explain`.
    """
    answer = service.explain(_instances(payload), client=client)
    return {"explanations": answer.explanation, **_extra_members(answer)}, answer


def predict_v1(service: Service, payload: Any, client: str) -> Reply:
    """{"instances": [...]} -> {"predictions": [...]}: labels only; arguments and errors as `explain_v1`."""
    answer = service.predict(_instances(payload), client=client)
    return {"predictions": answer.label, **_extra_members(answer)}, answer


def infer_v2(service: Service, payload: Any, client: str) -> Reply:
    """A V2 inference request with the tensor `input` -> a response with the tensors `explanation` and `label`.

    If enabled, there is `probabilities` too. A request may choose some of them as `outputs`; without `explanation`
    nothing is explained. Arguments and errors as `explain_v1`.
    """
    available = [output["name"] for output in metadata_v2(service)["outputs"]]
    request = validated(RequestV2, payload)
    wanted: list[str] = [output.name for output in request.outputs or ()] or available
    if len(set(wanted)) < len(wanted) or not set(wanted) <= set(available):
        raise RequestError(f"outputs: expected {' or '.join(available)}, each once", field="outputs")
    (tensor,) = request.inputs
    array, shape = numbers(tensor.data, "data"), tensor.shape
    if array.size != math.prod(shape) or (array.ndim > 1 and list(array.shape) != shape):
        got = f"{array.size}" if array.ndim == 1 else f"the shape {list(array.shape)}"
        raise RequestError(f"data: expected {math.prod(shape)} numbers for the shape {shape}, got {got}", field="data")
    x = array.reshape(shape)
    answer = (service.explain if EXPLANATION in wanted else service.predict)(x, client=client)
    content: dict[str, Any] = {"model_name": service.name, "model_version": answer.certificate[:12]}
    if request.id:
        content["id"] = request.id
    content["outputs"] = [_output(answer, name) for name in wanted]
    content["parameters"] = {"certificate": answer.certificate} | ({"uncertified": True} if answer.uncertified else {})
    return content, answer


def metadata_v2(service: Service) -> dict[str, Any]:
    """V2 metadata of the model."""
    now = service.now
    outputs: list[tuple[str, str, list[int]]] = [(EXPLANATION, "FP32", [-1]), (LABEL, "INT64", [-1])]
    outputs += [(PROBABILITIES, "FP32", [-1, -1])] if now.probabilities else []
    return {
        "name": service.name,
        "versions": [service.digest[:12]],
        "platform": "safexplain",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *(now.shape or ())]}],
        "outputs": [dict(zip(("name", "datatype", "shape"), output, strict=True)) for output in outputs],
    }


def _instances(payload: Any) -> NDArray[np.float32]:
    instances = validated(RequestV1, payload).instances
    if isinstance(instances, list) and instances and isinstance(instances[0], Mapping):
        name = str(next(iter(instances[0]), "instances"))[:80]
        raise RequestError(f"instances: expected arrays of numbers, got an object with {name!r}", field=name)
    return numbers(instances, "instances")


def _output(answer: Answer, name: str) -> dict[str, Any]:
    if name == LABEL:
        return {"name": name, "datatype": "INT64", "shape": [len(answer.label)], "data": answer.label}
    found = answer.explanation if name == EXPLANATION else answer.probabilities
    if isinstance(found, np.ndarray):
        return {"name": name, "datatype": "FP32", "shape": list(found.shape), "data": found.reshape(-1)}
    texts = [json.dumps(one) for one in found or ()]
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}


def _extra_members(answer: Answer) -> dict[str, Any]:
    given: dict[str, Any] = {} if answer.probabilities is None else {PROBABILITIES: answer.probabilities}
    return given | ({"uncertified": True} if answer.uncertified else {})
