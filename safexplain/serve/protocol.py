"""Payloads of the V1 and V2 inference protocols, read strictly and written from a list; no framework is imported.

A request holds inputs and nothing else: whatever else a client sends (a target, steps, baselines, parameters) is
refused by name, because the server decides. An answer holds explanations and labels, and the digest of the certificate.

V1: https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
V2 (Open Inference Protocol): https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import (
    BudgetExhausted,
    CertificateError,
    InputError,
    LedgerError,
    RefusedError,
    RequestError,
    UnavailableError,
)
from safexplain.serve.service import ANONYMOUS, Answer, Service, status_of

INPUT, EXPLANATION, LABEL, PROBABILITIES = "input", "explanation", "label", "probabilities"
"""Names of the V2 tensors."""

_TYPES = ("FP64", "FP32", "FP16", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)))
_LONGEST_ID = 256

MOST_BYTES = 32 << 20
"""Of a request's body."""

USER = "user:"
"""Before the names of authenticated users, lest a header gives one out for another."""


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it (RFC 9457).

    Args:
        status: of HTTP.
        title: what kind of problem it is, the same for all of a type.
        detail: what was expected, what came and what to do.
        type: the kind of problem, at the end of a URN.
        extra: further members: `field` of the request, or `renews`, when a budget does (RFC 3339).
        headers: of HTTP, as Retry-After.
    """

    status: int
    title: str
    detail: str
    type: str
    extra: Mapping[str, str | None] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The members of an application/problem+json body."""
        named = {"type": f"urn:safexplain:problem:{self.type}", "title": self.title, "status": self.status}
        return {**named, "detail": self.detail, **self.extra}


def problem_of(error: BaseException) -> Problem:
    """What a client is told about an error: sentences of this package about the request, and nothing else.

    Args:
        error: raised by `Service` or by the functions here; of any other the client learns nothing.
    """
    status = status_of(error)
    if isinstance(error, RequestError):
        extra = {"field": error.field} if error.field else {}
        return Problem(status, "The request cannot be answered", str(error), "request", extra)
    if isinstance(error, BudgetExhausted):
        if error.renews is None:
            return Problem(status, "The budget of this client is spent", str(error), "budget", {"renews": None})
        seconds = max(1, math.ceil((error.renews - datetime.now(UTC)).total_seconds()))
        renews = {"renews": error.renews.isoformat().replace("+00:00", "Z")}
        headers = {"Retry-After": str(seconds)}
        return Problem(status, "The budget of this client is spent", str(error), "budget", renews, headers)
    if isinstance(error, UnavailableError):
        return Problem(status, "The service cannot answer now", str(error), "unavailable", {}, {"Retry-After": "1"})
    if isinstance(error, LedgerError):
        said = "the ledger cannot be reached, and nothing is answered without it; ask again later"
        return Problem(status, "The service cannot answer now", said, "unavailable", {}, {"Retry-After": "5"})
    if isinstance(error, CertificateError | RefusedError):
        said = "the certificate does not hold for what is served; the operator is told in the log"
        return Problem(status, "Nothing certified can be served", said, "certificate")
    if isinstance(error, InputError):  # raised behind the checks of the service: its words may hold anything
        return Problem(status, "The request cannot be answered", "the model cannot take this input", "request")
    return Problem(status, "Internal error", "the request failed; the operator is told in the log", "internal")


@dataclass(frozen=True, eq=False)
class Asked:
    """A request that was read.

    Args:
        x: (n, ...) inputs.
        explained: whether explanations are asked for; False: labels alone.
        write: (answer, plain) -> the members of the response; plain: lists, not NumPy arrays.
    """

    x: NDArray[np.float32]
    explained: bool
    write: Callable[[Answer, bool], dict[str, Any]]

    def put(self, service: Service, client: str, request: bytes = b"") -> Answer:
        """The service's answer; arguments and errors as `Service.explain`, the form is `write`."""
        ask = service.explain if self.explained else service.predict
        return ask(self.x, client=client, request=request, form=self.write) if request else ask(self.x, client=client)


Reader = Callable[[Service, Any], Asked]
"""(service, decoded JSON) -> the request; raises RequestError."""


async def read_body(stream: AsyncIterator[bytes], most: int | None = None) -> bytes:
    """A request's body, as it comes in.

    Args:
        stream: its parts.
        most: bytes; None: `MOST_BYTES`.

    Raises:
        RequestError: it is longer (413); the rest of it is not read.
    """
    most = MOST_BYTES if most is None else most
    parts, size = [], 0
    async for part in stream:
        parts.append(part)
        size += len(part)
        if size > most:
            raise RequestError(f"expected a body of at most {most:,} bytes", status=413)
    return b"".join(parts)


def client_of(named: Sequence[str], user: str = "") -> str:
    """Who asks.

    Args:
        named: values of the header X-Client-Id.
        user: the platform's authenticated user, who goes before the header; "": it has none.

    Returns:
        "user:..." for a user; the header's name; or, without either, the name that all such requests share.

    Raises:
        RequestError: several names, or one that gives itself out for a user's.
    """
    if user:
        return USER + user
    if len(named) > 1 or (named and named[0].startswith(USER)):
        raise RequestError(f"X-Client-Id: expected one name that does not begin with {USER}", field="X-Client-Id")
    return named[0] if named else ANONYMOUS


def explain_v1(service: Service, payload: Any, client: str, *, plain: bool = True) -> dict[str, Any]:
    """{"instances": [...]} -> {"explanations": [...]}, of the class that the model predicts for each.

    There are `probabilities` too where the service was told to give them.

    Args:
        service: which.
        payload: decoded JSON.
        client: who asks.
        plain: lists; False: NumPy arrays, for writers that take them.

    Raises:
        RequestError: anything but instances, or what cannot be explained.
        SafexplainError: see `Service.explain`.
    """
    asked = read(service, "explain", client, read_explain_v1, payload)
    return asked.write(asked.put(service, client), plain)


def predict_v1(service: Service, payload: Any, client: str, *, plain: bool = True) -> dict[str, Any]:
    """{"instances": [...]} -> {"predictions": [...]}: labels alone; arguments and errors as `explain_v1`."""
    asked = read(service, "predict", client, read_predict_v1, payload)
    return asked.write(asked.put(service, client), plain)


def infer_v2(service: Service, payload: Any, client: str, *, plain: bool = True) -> dict[str, Any]:
    """A V2 inference request with the tensor `input` -> a response with the tensors `explanation` and `label`.

    There is `probabilities` too where the service was told to give it. A request may choose by `outputs` which of them
    it wants; without `explanation` nothing is explained.

    Args:
        service: which.
        payload: decoded JSON.
        client: who asks.
        plain: lists; False: NumPy arrays, for writers that take them.

    Raises:
        RequestError: another tensor, a parameter, data that do not fit shape and datatype.
        SafexplainError: see `Service.explain`.
    """
    asked = read(service, "infer", client, read_infer_v2, payload)
    return asked.write(asked.put(service, client), plain)


def read(service: Service, operation: str, client: str, reader: Reader, payload: Any) -> Asked:
    """What a payload asks; one that is refused is recorded as what the service itself refuses.

    Raises:
        RequestError: it is no such request.
    """
    try:
        return reader(service, payload)
    except RequestError as error:
        service.refused(operation, client, error)
        raise


def read_explain_v1(service: Service, payload: Any) -> Asked:
    """A `Reader` of V1."""

    def write(answer: Answer, plain: bool) -> dict[str, Any]:
        return {"explanations": _listed(answer.explanation, plain), **_marks(answer, plain)}

    return Asked(_instances(payload), True, write)


def read_predict_v1(service: Service, payload: Any) -> Asked:
    """A `Reader` of V1."""

    def write(answer: Answer, plain: bool) -> dict[str, Any]:
        return {"predictions": _listed(answer.label, plain), **_marks(answer, plain)}

    return Asked(_instances(payload), False, write)


def read_infer_v2(service: Service, payload: Any) -> Asked:
    """A `Reader` of V2."""
    given = (EXPLANATION, LABEL, PROBABILITIES) if service.probabilities else (EXPLANATION, LABEL)
    x, wanted, named = _inference(payload, given)

    def write(answer: Answer, plain: bool) -> dict[str, Any]:
        response: dict[str, Any] = {"model_name": service.name, "model_version": answer.certificate[:12]}
        if named:
            response["id"] = named
        outputs = [_output(answer, name, plain) for name in wanted]
        return {**response, "outputs": outputs, "parameters": {"certificate": answer.certificate, **_unsure(answer)}}

    return Asked(x, EXPLANATION in wanted, write)


def metadata_v2(service: Service) -> dict[str, Any]:
    """What the V2 protocol says about a model."""
    shape = [-1] if service.shape is None else [-1, *service.shape]
    return {
        "name": service.name,
        "versions": [service.digest[:12]],
        "platform": "safexplain",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": shape}],
        "outputs": [
            {"name": EXPLANATION, "datatype": "FP32", "shape": [-1]},
            {"name": LABEL, "datatype": "INT64", "shape": [-1]},
            *([{"name": PROBABILITIES, "datatype": "FP32", "shape": [-1, -1]}] if service.probabilities else []),
        ],
    }


def numbers(values: Any, name: str) -> NDArray[np.float32]:
    """Nested lists of numbers, or an array of numbers, as float32.

    Raises:
        RequestError: text, null, true and false, lists of different lengths, or a number that is no float32.
    """
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, RecursionError):
        raise RequestError(f"{name}: expected lists of numbers, all of one length", field=name) from None
    if array.dtype.kind not in "iuf" or _has_booleans(values):
        raise RequestError(f"{name}: expected numbers and nothing else", field=name)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _has_booleans(values: Any) -> bool:
    """Whether there is true or false among numbers, where NumPy takes them for 1 and 0."""
    if not isinstance(values, list):
        return False
    if values and isinstance(values[0], list):
        return any(map(_has_booleans, values))
    return bool in set(map(type, values))


def _object(payload: Any, what: str, known: set[str]) -> Mapping[str, Any]:
    if not isinstance(payload, Mapping):
        raise RequestError(f"expected {what} to be a JSON object, got {_kind(payload)}")
    for name in payload:
        if name not in known:
            raise RequestError(
                f"{str(name)[:80]!r} is no part of {what}: expected {', '.join(sorted(known))}. What is explained, and"
                " how, is the server's to decide",
                field=str(name)[:80],
            )
    return payload


def _no_parameters(body: Mapping[str, Any], where: str) -> None:
    """Nothing may be chosen by parameters; the first that is there is named."""
    given = body.get("parameters")
    if given is None or given == {}:
        return
    name = str(next(iter(given)))[:80] if isinstance(given, Mapping) else "parameters"
    raise RequestError(f"{where}: expected none, got {name!r}: what is explained is the server's to decide", field=name)


def _inference(payload: Any, given: tuple[str, ...]) -> tuple[NDArray[np.float32], list[str], str]:
    """Inputs, names of the outputs that are asked for, and the request's name."""
    body = _object(payload, "the request", {"inputs", "outputs", "id", "parameters"})
    _no_parameters(body, "parameters")
    named = body.get("id", "")
    if not isinstance(named, str) or len(named) > _LONGEST_ID:
        raise RequestError(f"id: expected a text of at most {_LONGEST_ID} characters", field="id")
    return _tensor(body.get("inputs")), _wanted(body.get("outputs"), given), named


def _instances(payload: Any) -> NDArray[np.float32]:
    body = _object(payload, "the request", {"instances"})
    instances = body.get("instances")
    if not isinstance(instances, list | np.ndarray):
        raise RequestError(f"instances: expected a list of inputs, got {_kind(instances)}", field="instances")
    if len(instances) == 0:
        return np.zeros((0,), np.float32)
    for one in instances:
        if isinstance(one, Mapping):
            name = str(next(iter(one), "instances"))[:80]
            raise RequestError(
                f"instances: expected each to be an array of numbers, got an object with {name!r}", field=name
            )
    return numbers(instances, "instances")


def _tensor(inputs: Any) -> NDArray[np.float32]:
    if not isinstance(inputs, list) or len(inputs) != 1:
        got = f"{len(inputs)} tensors" if isinstance(inputs, list) else _kind(inputs)
        raise RequestError(f"inputs: expected a list of one tensor, {INPUT!r}; got {got}", field="inputs")
    tensor = _object(inputs[0], "an input tensor", {"name", "shape", "datatype", "data", "parameters"})
    _no_parameters(tensor, f"parameters of {INPUT}")
    if tensor.get("name") != INPUT:
        raise RequestError(f"inputs: expected a tensor named {INPUT!r}, got {tensor.get('name')!r:.80}", field="name")
    shape, kind, data = tensor.get("shape"), tensor.get("datatype"), tensor.get("data")
    if (
        not isinstance(shape, list)
        or not 1 <= len(shape) <= 8
        or not all(type(n) is int and 0 <= n < 2**31 for n in shape)
    ):
        raise RequestError("shape: expected whole numbers, the first of them that of rows", field="shape")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise RequestError(f"datatype: expected one of {', '.join(_TYPES)}, got {kind!r:.40}", field="datatype")
    if not isinstance(data, list | np.ndarray):
        raise RequestError(f"data: expected a list of numbers, got {_kind(data)}", field="data")
    array = numbers(data, "data") if len(data) else np.zeros(0, np.float32)
    if array.size != math.prod(shape) or (array.ndim > 1 and list(array.shape) != shape):
        had = f"{array.size}" if array.ndim == 1 else f"the shape {list(array.shape)}"
        raise RequestError(f"data: expected {math.prod(shape)} numbers for the shape {shape}, got {had}", field="data")
    if not _are(kind, array):
        raise RequestError(f"data: expected numbers that {kind} can hold", field="data")
    return array.reshape(shape)


def _are(kind: str, array: NDArray[np.float32]) -> bool:
    """Whether numbers are of a V2 datatype, or can be."""
    if not array.size or kind in ("FP64", "FP32"):
        return True
    held: Any = np.finfo(np.float16) if kind == "FP16" else np.iinfo(kind.lower())
    whole = kind == "FP16" or bool((array == np.floor(array)).all())
    return whole and float(array.min()) >= float(held.min) and float(array.max()) <= float(held.max)


def _wanted(asked: Any, given: tuple[str, ...]) -> list[str]:
    """Names of the outputs that are asked for: all that are given, where nothing is said."""
    if asked is None or asked == []:
        return list(given)
    if not isinstance(asked, list):
        raise RequestError(f"outputs: expected a list, got {_kind(asked)}", field="outputs")
    wanted: list[str] = []
    for one in asked:
        output = _object(one, "an output", {"name", "parameters"})
        _no_parameters(output, "parameters of an output")
        name = output.get("name")
        if name not in given or name in wanted:
            raise RequestError(f"outputs: expected {' or '.join(given)}, each once; got {name!r:.80}", field="outputs")
        wanted.append(name)
    return wanted


def _output(answer: Answer, name: str, plain: bool) -> dict[str, Any]:
    if name == LABEL:
        return {"name": name, "datatype": "INT64", "shape": [len(answer.label)], "data": _listed(answer.label, plain)}
    found = answer.explanation if name == EXPLANATION else answer.probabilities
    if isinstance(found, np.ndarray):
        data = _listed(found.reshape(-1), plain)
        return {"name": name, "datatype": "FP32", "shape": list(found.shape), "data": data}
    texts = [json.dumps(one) for one in found or ()]
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "data": texts}


def _listed(values: Any, plain: bool) -> Any:
    return values.tolist() if plain and isinstance(values, np.ndarray) else values


def _marks(answer: Answer, plain: bool) -> dict[str, Any]:
    """What a V1 answer has beside what was asked for: probabilities, and that it is uncertified, where that is so."""
    given = {} if answer.probabilities is None else {PROBABILITIES: _listed(answer.probabilities, plain)}
    return given | _unsure(answer)


def _unsure(answer: Answer) -> dict[str, Any]:
    return {"uncertified": True} if answer.uncertified else {}


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else type(value).__name__)
