"""Hardened explanations as an MLflow model: saved with its certificate, loaded as a service, served by MLflow itself.

    save_model("release", "model.pt2", "certificate.json")      # model file and certificate as artefacts, never a key
    loaded = mlflow.pyfunc.load_model("release", model_config={"ledger": "sqlite:///spent.sqlite"})
    loaded.predict(rows)                                        # labels (n,)
    loaded.predict(rows, params={"explain": True})              # hardened maps (n, ...)

    mlflow models serve --model-uri release --env-manager local --port 5000    # POST /invocations

The key comes from the environment of whoever loads (SAFEXPLAIN_NOISE_KEY). What is saved is code of two lines ("models
from code") beside the files, so that nothing pickled is loaded. The signature names the parameters and leaves the
inputs to the service: MLflow's check would refuse float64 where it was told float32, and quote the rows it refuses.

MLflow's scoring server writes the rows of a refused request, and the traceback of a failed one, into its answer, drops
fields that it does not know, and hands no header to the model. While a hardened model is loaded, the handler of its
`/invocations`, and of no other model's, is another one: it refuses what is not listed, answers errors as problem+json
(RFC 9457), and takes the client from `X-Client-Id`. A server in which that cannot be done does not load the model.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain._versions import VERSION
from safexplain.errors import (
    ConfigurationError,
    InputError,
    MissingExtraError,
    RefusedError,
    RequestError,
    SafexplainError,
)
from safexplain.serve.protocol import Problem, client_of, numbers, problem_of, read_body
from safexplain.serve.service import Service

try:
    import mlflow
    from mlflow import pyfunc
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc import scoring_server
except ImportError as error:
    raise MissingExtraError(
        f'serving by MLflow needs {error.name}, which is not installed: pip install "safexplain[mlflow]"',
        name=error.name,
    ) from error

CODE = """import mlflow

from safexplain.serve.mlflow import HardenedModel

mlflow.models.set_model(HardenedModel())
"""
"""What is saved as the model: MLflow runs it on loading, and hands the artefacts to `HardenedModel.load_context`."""

SETTINGS = (
    *("arch", "batch_rows", "batch_wait", "cache", "device", "input_range", "input_shape", "ledger", "lifetime"),
    *("limits", "most_rows", "public_key", "timeout", "trust_pickle"),
)
"""What `model_config` may name: the arguments of `Service.load` that are neither artefacts nor secret."""

FORMATS = ("inputs", "instances", "dataframe_split", "dataframe_records")
"""Fields of a request, exactly one of which holds the rows; beside it only `params` is allowed."""

PARAMS = {"explain": bool, "client": str}
"""Parameters of a request, and their types."""

_CLIENT: ContextVar[str] = ContextVar("safexplain_mlflow_client", default="")
_SAVING: ContextVar[bool] = ContextVar("safexplain_mlflow_saving", default=False)
_log = logging.getLogger("safexplain.serve")


class Refusal(MlflowException):  # type: ignore[misc]
    """What MLflow raises in the place of the service's errors: it cannot put the rows before the message.

    Attributes:
        problem: status, and what the client is told.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(problem.detail)

    @property
    def message(self) -> str:
        """What is said. The scoring server sets it to the rows and what was said, which has no effect."""
        return self.problem.detail

    @message.setter
    def message(self, value: str) -> None:
        pass

    def serialize_as_json(self) -> str:
        """The problem (RFC 9457), and nothing that MLflow would add."""
        return json.dumps(self.problem.to_dict())

    def get_http_status_code(self) -> int:
        """The problem's status, also one that MLflow has no error code for."""
        return self.problem.status


class HardenedModel(pyfunc.PythonModel):  # type: ignore[misc]
    """A service behind MLflow's `predict`: labels, or with `params={"explain": True}` hardened maps.

    Attributes:
        service: made on loading.
    """

    service: Service

    def load_context(self, context: Any) -> None:
        """Make the service of the artefacts; `model_config` says where questions are counted, and how many are allowed.

        Raises:
            SafexplainError: as `Service.load`.
            ConfigurationError: something else than `SETTINGS` in `model_config`.
        """
        if _SAVING.get():  # older releases of MLflow load what they save, where there need be no key
            return
        _guard()
        settings = _settings(context.model_config or {})
        files = context.artifacts
        self.service = Service.load(files["model"], files["certificate"], public=files.get("public"), **settings)

    def predict(
        self,
        context: Any,
        model_input: np.ndarray,  # type: ignore[type-arg,unused-ignore]  # MLflow reads the hint, and would make others a signature
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Labels int64 (n,); with `explain` hardened maps float32 (n, ...), or a list of n dictionaries.

        Args:
            context: not used.
            model_input: (n, ...) array or nested lists, or a table, whose columns are taken in their order.
            params: `explain`, and `client`: who asks, where no header says so.

        Raises:
            Refusal: what the service raised, as MLflow's kind of error.
        """
        params = params or {}
        try:
            client = _client(params.get("client") or "")
            if params.get("explain"):
                return self.service.explain(_rows(model_input), client=client).explanation
            return self.service.predict(_rows(model_input), client=client).label
        except Exception as error:
            raise Refusal(_problem(error)) from None


def save_model(
    path: str | Path,
    model_file: str | Path,
    certificate: str | Path,
    *,
    public: str | Path | None = None,
    model_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Save a model and its certificate for MLflow, and nothing secret.

    Args:
        path: Folder to write; it must not exist yet.
        model_file: Any model file that `Service.load` reads.
        certificate: Its certificate.
        public: File of public rows, for methods that need a background and for near-duplicates.
        model_config: Values of `SETTINGS`, which whoever loads may change. It is stored in plain text: give a ledger's
            URL with a password on loading instead.
        options: For `mlflow.pyfunc.save_model`: `pip_requirements`, `code_paths`, `metadata`, ...

    Raises:
        InputError: a file does not exist.
        ConfigurationError: `model_config` or `options` hold what they must not.
    """
    with _saving(model_file, certificate, public, model_config, options) as arguments:
        pyfunc.save_model(path=str(path), **arguments)


def log_model(
    name: str,
    model_file: str | Path,
    certificate: str | Path,
    *,
    public: str | Path | None = None,
    model_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """`save_model` into the active run, under this name: `ModelInfo`. `options` may hold `registered_model_name`."""
    with _saving(model_file, certificate, public, model_config, options) as arguments:
        return pyfunc.log_model(name=name, **arguments)


@contextmanager
def _saving(
    model_file: str | Path,
    certificate: str | Path,
    public: str | Path | None,
    model_config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Arguments for MLflow, while the code that it copies lies in a temporary folder."""
    files = {"model": Path(model_file), "certificate": Path(certificate)}
    if public is not None:
        files["public"] = Path(public)
    for what, file in files.items():
        if not file.is_file():
            raise InputError(f"{what}: expected a file, there is none at {file}")
    if len({file.name for file in files.values()}) < len(files):
        raise InputError(
            "MLflow stores model, certificate and public rows in one folder: give their files different names"
        )
    for taken in ("python_model", "artifacts", "signature", "loader_module", "data_path", "input_example"):
        if taken in options:
            raise ConfigurationError(f"{taken} follows from the model file and its certificate; leave it out")
    _settings(model_config or {})
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*input example was not provided")  # it would store rows
        code = Path(folder) / "hardened_model.py"
        code.write_text(CODE)
        arguments = {
            "python_model": str(code),
            "artifacts": {what: str(file.resolve()) for what, file in files.items()},
            # only what is there can be set on loading
            "model_config": dict.fromkeys(SETTINGS) | dict(model_config or {}),
            "signature": _signature(),
            "pip_requirements": [
                f"safexplain[mlflow]=={VERSION}",
                f"torch=={version('torch').partition('+')[0]}",
            ],
            **options,
        }
        saving = _SAVING.set(True)
        try:
            yield arguments
        finally:
            _SAVING.reset(saving)


def _signature() -> Any:
    """The parameters and their defaults; of the inputs nothing, see the module."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import DataType, ParamSchema, ParamSpec

    parameters = [ParamSpec("explain", DataType.boolean, False), ParamSpec("client", DataType.string, "")]
    return ModelSignature(params=ParamSchema(parameters))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Service.load`.

    Raises:
        ConfigurationError: something else than `SETTINGS`.
    """
    if "key" in config:
        raise ConfigurationError(
            "model_config is stored and shown in plain text, so it holds no key: set SAFEXPLAIN_NOISE_KEY where the "
            "model is loaded"
        )
    if unknown := sorted(set(config) - set(SETTINGS)):
        raise ConfigurationError(f"model_config: expected {', '.join(SETTINGS)}; got {', '.join(map(repr, unknown))}")
    return {name: value for name, value in config.items() if value is not None}


def _client(named: str) -> str:
    """Who asks: the header says, or where there is none the parameter."""
    header = _CLIENT.get()
    if header and named and header != named:
        raise RequestError("client: the header X-Client-Id says who asks; leave the parameter out", field="client")
    return header or client_of([named] if named else [])


def _rows(given: Any) -> NDArray[np.float32]:
    """(n, ...) float32 of an array, nested lists or a table.

    Raises:
        RequestError: no numbers.
    """
    return numbers(given.to_numpy() if hasattr(given, "to_numpy") else given, "inputs")


def _problem(error: Exception) -> Problem:
    if not isinstance(error, SafexplainError):
        _log.error("a request to MLflow failed: %s", type(error).__name__)
    return problem_of(error)


def _guard() -> None:
    """Put `_answering` in the place of the scoring server's own handling of errors.

    `scoring_server.init`, which makes the server's application, asks for it after the model was loaded.

    Raises:
        RefusedError: this process is a scoring server, and has no such place.
    """
    name = "_async_catch_mlflow_exception"
    original = getattr(scoring_server, name, None)
    if original is None:
        if "__pyfunc_model_path__" in os.environ:
            raise RefusedError(
                f"MLflow {mlflow.__version__} puts rows and tracebacks into its answers, and there is "
                "no known way to stop this version: use one that docs/platforms.md names, or `safexplain serve`"
            )
    elif not hasattr(original, "of_safexplain"):
        setattr(scoring_server, name, _answering(original))


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator for the handler of `/invocations`: `original`, unless it serves a hardened model."""
    from fastapi import Request, Response

    def decorate(handler: Callable[[Request], Awaitable[Response]]) -> Any:
        model = inspect.getclosurevars(handler).nonlocals.get("model")
        hardened = _hardened(model)
        if hardened is None:
            return original(handler)

        @wraps(handler)
        async def answer(request: Request) -> Response:
            client = _CLIENT.set("")
            try:
                _CLIENT.set(_named(request.headers.getlist("x-client-id")))
                body = await read_body(request.stream())
                _check(body, request.headers.get("content-type", ""))
                response = await handler(Request(request.scope, _replay(body)))
            except Refusal as refusal:
                problem = refusal.problem
            except SafexplainError as error:
                problem = problem_of(error)
            except Exception as error:  # MLflow cannot read the body, and says so by quoting it
                _log.info("a request that MLflow cannot read: %s", type(error).__name__)
                problem = problem_of(_unreadable())
            else:
                response.headers.update(_marks(hardened.service))
                return response
            finally:
                _CLIENT.reset(client)
            return Response(
                json.dumps(problem.to_dict()), problem.status, dict(problem.headers), "application/problem+json"
            )

        return answer

    decorate.of_safexplain = True  # type: ignore[attr-defined]
    return decorate


def _hardened(model: Any) -> HardenedModel | None:
    """The hardened model in one that MLflow loaded; None: it is another one."""
    try:
        found = model.unwrap_python_model()
    except (AttributeError, MlflowException):
        return None
    return found if isinstance(found, HardenedModel) else None


def _named(given: list[str]) -> str:
    """The client that the header names; "": none."""
    return client_of(given) if given else ""


def _replay(body: bytes) -> Callable[[], Awaitable[dict[str, Any]]]:
    """What hands a body that was read already to the next reader."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _marks(service: Service) -> dict[str, str]:
    """Headers of every answer."""
    return {"X-Safexplain-Certificate": service.digest, "Cache-Control": "no-store"}


def _unreadable() -> RequestError:
    return RequestError(
        'MLflow cannot read the body as rows: expected {"inputs": [[...], ...]} as application/json, or another of its '
        "formats",
        field="inputs",
    )


def _check(body: bytes, content_type: str) -> None:
    """Refuse by name what MLflow would drop in silence, and what it would answer with the body itself.

    Raises:
        RequestError: not JSON with exactly one of `FORMATS` and, where wanted, `params` with `PARAMS`.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return  # CSV or Parquet: rows and nothing else
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise RequestError("expected JSON; it cannot be read") from None
    if not isinstance(request, dict):
        raise RequestError(f"expected an object with one of {', '.join(FORMATS)}")
    for field in request:
        if field not in (*FORMATS, "params"):
            raise RequestError(
                f"{field[:80]!r} is no part of a request: expected one of {', '.join(FORMATS)}, and params. What is "
                "explained, and how, is the server's to decide",
                field=field[:80],
            )
    if sum(field in request for field in FORMATS) != 1:
        raise RequestError(f"expected exactly one of {', '.join(FORMATS)}", field="inputs")
    params = request.get("params")
    if params is None:
        return
    if not isinstance(params, dict):
        raise RequestError("params: expected an object", field="params")
    for name, value in params.items():
        if name not in PARAMS:
            raise RequestError(
                f"params: expected {', '.join(PARAMS)}; got {name[:80]!r}. What is explained, and how, is the server's "
                "to decide",
                field=name[:80],
            )
        if not isinstance(value, PARAMS[name]):
            raise RequestError(f"params: expected {name} to be a {PARAMS[name].__name__}", field=name)
