"""The format of questions to a service and of its answers: one of three, perhaps with changes from a TOML file.

    json        POST {"instances": rows}        ->  {"explanations": rows, "labels": [...]}
    kserve-v1   POST {"instances": rows}        ->  {"explanations": rows}; URL:predict -> {"predictions": [...]}
    v2          POST {"inputs": [{"name": "input", "shape": ..., "datatype": "FP32", "data": [...]}]}
                ->  {"outputs": [{"name": "explanation", ...}, {"name": "label", ...}]}

Paths into a JSON body are names joined by dots; a number selects one entry of a list, a name reads all. See
docs/endpoint-audit.md.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from safexplain._digest import sha256
from safexplain._validate import check_number, check_whole, from_table, read_toml
from safexplain.errors import ConfigurationError, ConfigurationTypeError, InputError

Format = Literal["json", "kserve-v1", "v2"]
FORMATS: tuple[str, ...] = get_args(Format)

_EXPLAIN, _PREDICT = ":explain", ":predict"


@dataclass(frozen=True)
class Request:
    """The format of a question: fields of the table [request]."""

    inputs: str = "instances"
    single: bool = False  # one row per request, at the path itself instead of in a list of rows
    channels: Literal["first", "last"] = "first"
    features: tuple[str, ...] = ()  # names of the columns, to send a row as an object
    constant: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # "${NAME}" in a value is an environment variable

    def __post_init__(self) -> None:
        if self.channels not in ("first", "last"):
            raise ConfigurationError(f'payload: request.channels: expected "first" or "last", got {self.channels!r}')


@dataclass(frozen=True)
class Answer:
    """Paths of explanations and labels in an answer: fields of the table [answer]."""

    explanations: str = "explanations"
    labels: str = "labels"
    probabilities: str = ""  # in place of the labels; then judged as released
    classes: tuple[str | int, ...] = ()  # possible labels, in the order of the model's outputs
    features: tuple[str, ...] = ()  # names in the order of the inputs, for explanations {feature: number}
    label_url: str = ""  # ":predict": the sibling of a URL in ":explain"; "": labels are in the endpoint's answer

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes):
            raise ConfigurationError(f"payload: answer.classes: expected different classes, got {list(self.classes)}")


@dataclass(frozen=True)
class Asking:
    """Rate and limits of requests: fields of the table [asking]."""

    rate: float = 10.0  # requests per second, one after the other
    batch: int = 32  # rows per request
    retries: int = 5
    timeout: float = 60.0  # seconds
    longest_wait: float = 600.0  # seconds that a server may request
    budget: int | None = None  # questions in all runs together; None: any number
    twice: int = 16  # questions that are asked again at the end

    def __post_init__(self) -> None:
        for name in ("rate", "timeout", "longest_wait"):
            object.__setattr__(self, name, check_number(f"payload: asking.{name}", getattr(self, name), above=0))
        for name, least in (("batch", 1), ("retries", 0), ("twice", 0)):
            check_whole(f"payload: asking.{name}", getattr(self, name), least)
        if self.budget is not None:
            check_whole("payload: asking.budget", self.budget, 1)


@dataclass(frozen=True)
class Payload:
    """The format of questions and answers, and the limits of requests."""

    format: Format = "json"  # which the tables change
    request: Request = field(default_factory=Request)
    answer: Answer = field(default_factory=Answer)
    asking: Asking = field(default_factory=Asking)

    @classmethod
    def of(cls, format: Format) -> Payload:
        """The payload of a format; raises `ConfigurationError` if it is unknown."""
        if format not in FORMATS:
            raise ConfigurationError(f"payload: format: expected one of {', '.join(FORMATS)}, got {format!r}")
        if format == "kserve-v1":
            return cls(format, answer=Answer(labels="predictions", label_url=_PREDICT))
        if format == "v2":
            return cls(format, Request(inputs="input"), Answer(explanations="explanation", labels="label"))
        return cls()

    @classmethod
    def read(cls, format: str | Path) -> Payload:
        """The payload of a format, or of a TOML file with `format` and the tables `request`, `answer` and `asking`;
        ConfigurationError: no such file, an unknown name or a wrong value; InputError: it is not TOML."""
        if str(format) in FORMATS:
            return cls.of(str(format))  # type: ignore[arg-type]
        path = Path(format)
        if not path.is_file():
            raise ConfigurationError(
                f"payload: expected {', '.join(FORMATS)} or an existing TOML file, got {str(format)!r}"
            )
        return cls.from_dict(read_toml(path, "payload"), f"payload {path}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], what: str = "payload") -> Payload:
        """From the content of a TOML file, whose defaults are those of the format; raises as `read`."""
        known = ("format", "request", "answer", "asking")
        if unknown := sorted(content.keys() - set(known)):
            raise ConfigurationError(f"{what}: unknown {', '.join(unknown)}; known are {', '.join(known)}")
        base = cls.of(content.get("format", "json"))
        request, answer, asking = (content.get(name, {}) for name in known[1:])
        for name, table in (("request", request), ("answer", answer)):
            if not isinstance(table, Mapping):
                raise ConfigurationTypeError(f"{what}: {name} must be a table, got {table!r:.60}")
        answer = dict(answer)
        if base.format == "kserve-v1" and {"labels", "probabilities"} & answer.keys() and "label_url" not in answer:
            answer["label_url"] = ""
        if answer.get("probabilities"):
            if "labels" in answer:
                raise ConfigurationError(
                    f"{what}: expected labels or probabilities in answer, got both: keep the probabilities"
                )
            answer["labels"] = ""
        return cls(
            base.format,
            from_table(Request, {**vars(base.request), **request}, f"{what}: request"),
            from_table(Answer, {**vars(base.answer), **answer}, f"{what}: answer"),
            from_table(Asking, asking, f"{what}: asking"),
        )

    @property
    def releases_probabilities(self) -> bool:
        """Whether the service releases scores of the classes."""
        return bool(self.answer.probabilities)

    @property
    def digest(self) -> str:
        """SHA-256 of the meaning of questions and answers, without headers and limits."""
        answer = {**asdict(self.answer), "label_url": without_credentials(self.answer.label_url)}
        request = {name: value for name, value in asdict(self.request).items() if name != "headers"}
        return sha256(json.dumps([self.format, request, answer], sort_keys=True, default=str))

    def headers(self) -> dict[str, str]:
        """Headers of a request, with environment variables; raises `ConfigurationError` if one is not set."""

        def filled(found: re.Match[str]) -> str:
            if (value := os.environ.get(found[1])) is None:
                raise ConfigurationError(f"payload: request.headers uses {found[0]}, but {found[1]} is not set")
            return value

        return {name: re.sub(r"\$\{(\w+)\}", filled, value) for name, value in self.request.headers.items()}

    def label_url(self, url: str) -> str:
        """The URL that answers with labels; "": the endpoint's answer has them."""
        if self.answer.label_url != _PREDICT:
            return self.answer.label_url
        parts = urlsplit(url)
        if not parts.path.endswith(_EXPLAIN):
            raise ConfigurationError(
                f"{self.format}: expected a URL that ends in :explain, whose sibling :predict gives the labels, got"
                f" {without_credentials(url)}. Otherwise set in a TOML file answer.label_url, or answer.labels, their"
                " path in the endpoint's answer"
            )
        return urlunsplit(parts._replace(path=parts.path.removesuffix(_EXPLAIN) + _PREDICT))

    def body(self, x: NDArray[np.float32]) -> dict[str, Any]:
        """The body of a request about (n, ...) rows; `ConfigurationError` if the format does not fit them."""
        if self.request.channels == "last" and x.ndim > 3:
            x = np.moveaxis(x, 1, -1)
        body: dict[str, Any] = json.loads(json.dumps(dict(self.request.constant), default=str))
        if self.format == "v2":
            data = x.reshape(-1).tolist()
            tensor = {"name": self.request.inputs, "shape": list(x.shape), "datatype": "FP32", "data": data}
            return {**body, "inputs": [tensor]}
        rows: list[Any] = x.tolist()
        if names := self.request.features:
            if x.ndim != 2 or x.shape[1] != len(names):
                raise ConfigurationError(
                    f"payload: request.features names {len(names)} columns, but the examples have shape {x.shape[1:]}"
                )
            rows = [dict(zip(names, row, strict=True)) for row in rows]
        place = body
        *above, last = self.request.inputs.split(".")
        for name in above:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigurationError(f"payload: request.inputs {self.request.inputs}: {name} is not an object")
        place[last] = rows[0] if self.request.single else rows
        return body

    def maps(self, body: Any, n: int) -> NDArray[np.float32]:
        """The (n, ...) explanations in an answer about n rows; `InputError` if they are missing or wrong."""
        what = "explanations"
        value = self._value(body, self.answer.explanations, n, what)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = [self._row(row, i) for i, row in enumerate(value)]
        rows = _numbers(value, n, what)
        with np.errstate(over="ignore"):
            found = rows.astype(np.float32)
        if not np.isfinite(found).all():
            raise InputError("its explanations have NaN or infinite values")
        if found.ndim < 2 or not found[0].size:
            raise InputError(f"expected explanations of shape (n, ...), a map for each row, got {found.shape}")
        return np.moveaxis(found, -1, 1) if self.request.channels == "last" and found.ndim > 3 else found

    def labels(self, body: Any, n: int, classes: int) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """(n,) predicted classes in an answer about n rows, and (n, classes) scores if these are released; `InputError`
        if they are missing or wrong."""
        if self.answer.probabilities:
            scores = _numbers(self._value(body, self.answer.probabilities, n, "probabilities"), n, "probabilities")
            one = scores.reshape(n, -1)
            if classes == 2 and one.shape[1] == 1 and bool(((one >= 0) & (one <= 1)).all()):
                one = np.concatenate([1 - one, one], axis=1)
            if one.shape != (n, classes) or not np.isfinite(one).all():
                raise InputError(
                    f"expected probabilities of shape ({n}, {classes}), finite and one for each class, got"
                    f" {scores.shape}"
                )
            return one.argmax(1), one
        value = self._value(body, self.answer.labels, n, "labels")
        listed = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(listed, list) or len(listed) != n:
            raise InputError(f"expected a list of {n} labels, one for each row, got {_kind(listed)}")
        flat = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in listed]
        if isinstance(flat[0], list):
            raise InputError(
                f"its labels are lists of {len(flat[0])} numbers, which seem to be scores: set their path as"
                " answer.probabilities in a TOML file, so that they are judged as released"
            )
        return np.array([self._label(one, classes) for one in flat], dtype=np.int64), None

    def _label(self, label: Any, classes: int) -> int:
        if names := self.answer.classes:
            if label in names and not isinstance(label, bool):
                return names.index(label)
            raise InputError(
                f"expected a label of answer.classes ({', '.join(map(str, names))[:200]}), got {label!r:.40}"
            )
        is_integer = isinstance(label, int | float) and not isinstance(label, bool) and float(label).is_integer()
        if not is_integer or not 0 <= label < classes:
            raise InputError(
                f"expected a label from 0 to {classes - 1}, as the reference models have, got {label!r:.40}; if its"
                " labels are names or start elsewhere, list them in order as answer.classes in a TOML file"
            )
        return int(label)

    def _row(self, row: Any, i: int) -> list[Any]:
        names = self.answer.features
        if not names:
            raise InputError(
                f"its explanations are objects ({_kind(row)}): list the features in the order of the inputs as"
                " answer.features in a TOML file, or give the path of the numbers as answer.explanations"
            )
        if not isinstance(row, dict) or row.keys() != set(names):
            raise InputError(f"its explanation of row {i} does not have the features of answer.features")
        return [row[name] for name in names]

    def _value(self, body: Any, path: str, n: int, what: str) -> Any:
        """The value at a path: a v2 tensor (n, ...), or any JSON, a list of n."""
        if self.format == "v2":
            return _tensor(body, path, what)
        value = _at(body, path.split(".") if path else [], path, what)
        return [value] if self.request.single and n == 1 else value


def without_credentials(url: str) -> str:
    """A URL without user, password, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _at(body: Any, path: Sequence[str], full_path: str, what: str) -> Any:
    """The value at a path; a name reads every entry of a list."""
    for i, name in enumerate(path):
        if isinstance(body, list) and not name.isdigit():
            return [_at(entry, path[i:], full_path, what) for entry in body]
        if isinstance(body, list) and int(name) < len(body):
            body = body[int(name)]
        elif isinstance(body, dict) and name in body:
            body = body[name]
        else:
            raise InputError(f"expected {name!r} on the path of its {what}, {full_path!r}, got {_kind(body)}")
    return body


def _tensor(body: Any, name: str, what: str) -> NDArray[Any]:
    outputs = body.get("outputs") if isinstance(body, dict) else None
    if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
        raise InputError(f"expected a V2 answer with a list of outputs, got {_kind(body)}")
    found = [one for one in outputs if one.get("name") == name]
    if len(found) != 1:
        names = ", ".join(str(one.get("name")) for one in outputs)
        raise InputError(f"expected one output {name!r} for the {what}, got {names[:120] or 'none'}")
    shape, data = found[0].get("shape"), found[0].get("data")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise InputError(f"its output {name} has the shape {shape!r:.60}")
    numbers = _array(data, what)
    if numbers.size != int(np.prod(shape, dtype=object)):
        raise InputError(f"its output {name} has {numbers.size} numbers, which do not fit its shape {shape}")
    return numbers.reshape(shape)


def _array(value: Any, what: str) -> NDArray[Any]:
    """The array of nested lists of numbers; booleans are not numbers, and texts only as labels."""
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        raise InputError(f"its {what} are lists of different lengths") from None
    if what == "labels" and array.dtype.kind in "UO":
        return array.astype(object)
    if array.dtype.kind not in "iuf":
        raise InputError(f"expected lists of numbers, all of one length, as {what}, got {_kind(value)}")
    return array


def _numbers(value: Any, n: int, what: str) -> NDArray[np.float64]:
    array = value if isinstance(value, np.ndarray) else _array(value, what)
    if array.ndim == 0 or len(array) != n:
        raise InputError(f"expected {what} for each of {n} rows, got shape {array.shape}")
    return array.astype(np.float64)


def _kind(value: Any) -> str:
    """The kind of a JSON value in a few words, without its numbers."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(str, value))[:80] or 'nothing'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return {str: "a text", bool: "true or false", type(None): "null"}.get(type(value), "a number")
