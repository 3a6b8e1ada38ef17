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
fields that it does not know, reads Parquet (of which 10 KB can hold 3 GB), and hands no header to the model. So the
`/invocations` of a hardened model, and of no other, is answered here instead, as `safexplain.serve.http` answers: JSON
alone, what is not listed is refused, the client is that of `X-Client-Id`, errors are problem+json (RFC 9457). In a
server in which that cannot be done the model does not load.
"""

from __future__ import annotations

import inspect
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

from safexplain._versions import VERSION
from safexplain.errors import ConfigurationError, InputError, MissingExtraError, RefusedError, RequestError
from safexplain.serve.http import respond
from safexplain.serve.inputs import ANONYMOUS, numbers
from safexplain.serve.protocol import Intake, Reply, Strict, checked
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
    *("arch", "batch_rows", "device", "input_range", "input_shape", "ledger", "limits", "most_rows", "public_key"),
    *("timeout", "trust_pickle"),
)
"""What `model_config` may name: the arguments of `Service.load` that are neither artefacts nor secret."""

FORMATS = ("inputs", "instances", "dataframe_split", "dataframe_records")
"""Fields of a request, exactly one of which holds the rows; beside it only `params` is allowed."""

_SAVING: ContextVar[bool] = ContextVar("safexplain_mlflow_saving", default=False)


class Split(Strict):
    """A table: its columns are taken in their order."""

    columns: Any = None
    index: Any = None
    data: Any


class Params(Strict):
    """What a client may choose over HTTP."""

    explain: bool = False


class Invocation(Strict):
    """The body of a request to `/invocations`."""

    inputs: Any = None
    instances: Any = None
    dataframe_split: Split | None = None
    dataframe_records: list[dict[str, Any]] | None = None
    params: Params | None = None


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
            params: `explain`, and `client`: who asks, where the model is called in Python.

        Raises:
            SafexplainError: see `Service.explain`.
        """
        params = params or {}
        x, client = numbers(model_input, "inputs"), params.get("client") or ANONYMOUS
        if params.get("explain"):
            return self.service.explain(x, client=client).explanation
        return self.service.predict(x, client=client).label


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

    def decorate(handler: Callable[[Any], Awaitable[Any]]) -> Any:
        model = inspect.getclosurevars(handler).nonlocals.get("model")
        try:
            hardened = model.unwrap_python_model() if model is not None else None
        except (AttributeError, MlflowException):
            hardened = None
        if not isinstance(hardened, HardenedModel):
            return original(handler)
        intake = Intake(hardened.service)

        @wraps(handler)
        async def answer(request: Any) -> Any:
            return await respond(request, intake, "invocations", invoke, tables=True)

        return answer

    decorate.of_safexplain = True  # type: ignore[attr-defined]
    return decorate


def invoke(service: Service, payload: Any, client: str) -> Reply:
    """One of `FORMATS`, and `params` with `explain` -> {"predictions": labels, or hardened maps}.

    Args:
        service: which.
        payload: decoded JSON.
        client: who asks; over HTTP no parameter says so.

    Raises:
        RequestError: anything else; the words name the field.
        SafexplainError: see `Service.explain`.
    """
    request = checked(Invocation, payload)
    given = [name for name in FORMATS if getattr(request, name) is not None]
    if len(given) != 1:
        raise RequestError(f"expected exactly one of {', '.join(FORMATS)}", field="inputs")
    rows = getattr(request, given[0])
    if isinstance(rows, Split):
        rows = rows.data
    elif given[0] == "dataframe_records":
        names = list(rows[0]) if rows else []
        if any(row.keys() != set(names) for row in rows):
            raise RequestError("dataframe_records: expected rows with the same columns", field="dataframe_records")
        rows = [[row[name] for name in names] for row in rows]
    explain = request.params is not None and request.params.explain
    answer = (service.explain if explain else service.predict)(numbers(rows, given[0]), client=client)
    return Reply({"predictions": answer.explanation if explain else answer.label}, answer)
