"""Payloads of the V1 and V2 inference protocols, read strictly and written from a list; no framework is imported.

A request holds inputs and nothing else: whatever else a client sends (a target, steps, baselines, parameters) is
refused by name, because the server decides. An answer holds explanations and labels, and the digest of the certificate.
`Intake` is how requests come in on every platform: bounded in bytes and in threads, for all clients and for each.

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
"""Names of the V2 tensors."""

BODY_SECONDS = 30.0
"""In which a request's body must have come."""

IN_FLIGHT = 64 << 20
"""Bytes of all bodies that are read or answered."""

AT_ONCE = 128
"""Requests of all clients that have a thread."""

AT_ONCE_EACH = 32
"""Requests of one client that have a thread; more of them wait."""

T = TypeVar("T")


class Intake:
    """Requests on their way to a service, of which one client holds a share at most.

    Args:
        service: which.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._held: Counter[str] = Counter()  # bytes of each client
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._threads: list[CapacityLimiter] = []  # made in the event loop that it is for

    @asynccontextmanager
    async def body(self, stream: AsyncIterator[bytes], client: str) -> AsyncIterator[bytearray]:
        """A request's body, as it comes in; its bytes count as long as the block lasts.

        Raises:
            RequestError: it is longer than `Bounds.size`, and the rest is not read (413), or too slow (408).
            UnavailableError: too many bytes of all clients, or of this one, are on their way.
        """
        body, most = bytearray(), self.service.now.bounds.size
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    async for part in stream:
                        self._check_room(client, len(part), len(body))
                        self._held[client] += len(part)
                        body += part
                        if len(body) > most:
                            raise RequestError(f"expected a body of at most {most:,} bytes", status=413)
            except TimeoutError:
                raise RequestError(f"expected the body within {BODY_SECONDS:g} s", status=408) from None
            yield body
        finally:
            self._held[client] -= len(body)
            self._held += Counter()  # without clients that hold nothing

    def _check_room(self, client: str, more: int, own: int) -> None:
        """Raise UnavailableError unless a request that has `own` bytes may have more: beside others of its client it
        keeps to a share, beside those of all to the whole; alone it may have what `Bounds.size` allows."""
        mine, every = self._held[client], self._held.total()
        if (mine > own and mine + more > IN_FLIGHT // 4) or (every > own and every + more > IN_FLIGHT):
            raise UnavailableError("overloaded: too many bytes of requests wait already; ask again later")

    async def answer(self, client: str, ask: Callable[[], T]) -> T:
        """What `ask` returns, in a thread; requests of one client beyond its share wait for each other."""
        if not self._threads:
            self._threads.append(CapacityLimiter(AT_ONCE))
        async with self._turns.setdefault(client, asyncio.Semaphore(AT_ONCE_EACH)):
            return await to_thread.run_sync(ask, limiter=self._threads[0])


class Strict(BaseModel):
    """A JSON object without other members than the listed ones, nor values of other types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Nothing(Strict):
    """Parameters, of which there are none."""


class RequestV1(Strict):
    """Inputs of a V1 request."""

    instances: Any = Field(json_schema_extra={"type": "array", "items": {}})


class TensorV2(Strict):
    """The inputs of a V2 request."""

    name: Literal["input"]
    shape: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=8)]
    datatype: Literal["FP64", "FP32", "FP16", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
    data: Any = Field(json_schema_extra={"type": "array", "items": {}})
    parameters: Nothing | None = None


class OutputV2(Strict):
    """A tensor that is asked for."""

    name: Literal["explanation", "label", "probabilities"]
    parameters: Nothing | None = None


class RequestV2(Strict):
    """A V2 inference request."""

    inputs: Annotated[list[TensorV2], Field(min_length=1, max_length=1)]
    outputs: Annotated[list[OutputV2], Field(max_length=3)] | None = None
    id: Annotated[str, Field(max_length=256)] = ""
    parameters: Nothing | None = None


M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], payload: Any) -> M:
    """A payload as the model says it is.

    Raises:
        RequestError: it is not; the words name the field and quote nothing.
    """
    try:
        return model.model_validate(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = [str(part)[:80] for part in first["loc"] if isinstance(part, str)]
        name = where[-1] if where else ""
        if first["type"] == "extra_forbidden":
            said = f"{name!r} is no part of a request: what is explained, and how, is the server's to decide"
        else:
            said = f"{'.'.join(where) or 'the request'}: {first['msg'][:300]}"
        raise RequestError(said, field=name) from None


Reply = tuple[Any, Answer]
"""A response, in JSON types and NumPy arrays, and what it was made of."""

Operation = Callable[[Service, Any, str], Reply]
"""(service, payload, client) -> the response: `explain_v1`, `predict_v1` or `infer_v2`."""


def headers(answer: Answer) -> dict[str, str]:
    """Of HTTP: which certificate an answer is under, whether that certifies it, and that nobody stores it."""
    found = {"X-Safexplain-Certificate": answer.certificate, "Cache-Control": "no-store"}
    return found | ({"X-Safexplain-Uncertified": "true"} if answer.uncertified else {})


def explain_v1(service: Service, payload: Any, client: str) -> Reply:
    """{"instances": [...]} -> {"explanations": [...]}, of the class that the model predicts for each.

    There are `probabilities` too where the service was told to give them.

    Args:
        service: which.
        payload: decoded JSON.
        client: who asks.

    Raises:
        RequestError: anything but instances, or what cannot be explained.
        SafexplainError: see `Service.explain`.
    """
    answer = service.explain(_instances(payload), client=client)
    return {"explanations": answer.explanation, **_beside(answer)}, answer


def predict_v1(service: Service, payload: Any, client: str) -> Reply:
    """{"instances": [...]} -> {"predictions": [...]}: labels alone; arguments and errors as `explain_v1`."""
    answer = service.predict(_instances(payload), client=client)
    return {"predictions": answer.label, **_beside(answer)}, answer


def infer_v2(service: Service, payload: Any, client: str) -> Reply:
    """A V2 inference request with the tensor `input` -> a response with the tensors `explanation` and `label`.

    There is `probabilities` too where the service was told to give it. A request may choose by `outputs` which of them
    it wants; without `explanation` nothing is explained. Arguments and errors as `explain_v1`.
    """
    given = (EXPLANATION, LABEL, PROBABILITIES) if service.now.probabilities else (EXPLANATION, LABEL)
    request, x, wanted = _inference(payload, given)
    answer = (service.explain if EXPLANATION in wanted else service.predict)(x, client=client)
    content: dict[str, Any] = {"model_name": service.name, "model_version": answer.certificate[:12]}
    if request.id:
        content["id"] = request.id
    content["outputs"] = [_output(answer, name) for name in wanted]
    content["parameters"] = {"certificate": answer.certificate} | ({"uncertified": True} if answer.uncertified else {})
    return content, answer


def metadata_v2(service: Service) -> dict[str, Any]:
    """What the V2 protocol says about a model."""
    now = service.now
    shape = [-1] if now.shape is None else [-1, *now.shape]
    return {
        "name": service.name,
        "versions": [service.digest[:12]],
        "platform": "safexplain",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": shape}],
        "outputs": [
            {"name": EXPLANATION, "datatype": "FP32", "shape": [-1]},
            {"name": LABEL, "datatype": "INT64", "shape": [-1]},
            *([{"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, -1]}] if now.probabilities else []),
        ],
    }


def _instances(payload: Any) -> NDArray[np.float32]:
    instances = checked(RequestV1, payload).instances
    if isinstance(instances, list) and instances and isinstance(instances[0], Mapping):
        name = str(next(iter(instances[0]), "instances"))[:80]
        raise RequestError(f"instances: expected arrays of numbers, got an object with {name!r}", field=name)
    return numbers(instances, "instances")


def _inference(payload: Any, given: tuple[str, ...]) -> tuple[RequestV2, NDArray[np.float32], list[str]]:
    """The request, its inputs, and names of the outputs that it wants: all that are given, where it names none."""
    request = checked(RequestV2, payload)
    wanted: list[str] = [output.name for output in request.outputs or ()] or list(given)
    if len(set(wanted)) < len(wanted) or not set(wanted) <= set(given):
        raise RequestError(f"outputs: expected {' or '.join(given)}, each once", field="outputs")
    (tensor,) = request.inputs
    array, shape = numbers(tensor.data, "data"), tensor.shape
    if array.size != math.prod(shape) or (array.ndim > 1 and list(array.shape) != shape):
        had = f"{array.size}" if array.ndim == 1 else f"the shape {list(array.shape)}"
        raise RequestError(f"data: expected {math.prod(shape)} numbers for the shape {shape}, got {had}", field="data")
    return request, array.reshape(shape), wanted


def _output(answer: Answer, name: str) -> dict[str, Any]:
    if name == LABEL:
        return {"name": name, "datatype": "INT64", "shape": [len(answer.label)], "data": answer.label}
    found = answer.explanation if name == EXPLANATION else answer.probabilities
    if isinstance(found, np.ndarray):
        return {"name": name, "datatype": "FP32", "shape": list(found.shape), "data": found.reshape(-1)}
    texts = [json.dumps(one) for one in found or ()]
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}


def _beside(answer: Answer) -> dict[str, Any]:
    """What a V1 answer has beside what was asked for: probabilities, and that it is uncertified, where that is so."""
    given: dict[str, Any] = {} if answer.probabilities is None else {PROBABILITIES: answer.probabilities}
    return given | ({"uncertified": True} if answer.uncertified else {})
