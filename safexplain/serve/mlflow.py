"""Hardened explanations as an MLflow model: saved with its certificate, loaded as a service, served by MLflow itself.

    save_model("release", "model.pt2", "certificate.json")      # model file and certificate as artefacts, never a key
    loaded = mlflow.pyfunc.load_model("release", model_config={"ledger": "sqlite:///spent.sqlite"})
    loaded.predict(rows)                                        # labels (n,)
    loaded.predict(rows, params={"explain": True})              # hardened maps (n, ...)

    mlflow models serve --model-uri release --env-manager local --port 5000    # POST /invocations

The key comes from the environment of whoever loads (SAFEXPLAIN_NOISE_KEY). What is saved is code of two lines ("models
from code") beside the files, so that nothing pickled is loaded.

MLflow's scoring server writes the rows of a refused request, and the traceback of a failed one, into its answer, drops
fields that it does not know, reads Parquet (of which 10 KB can hold 3 GB), and hands no header to the model. So the
`/invocations` of a hardened model, and of no other, is answered by `safexplain.serve.http`, as on other platforms. In a
server in which that cannot be done the model does not load.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import fields
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from safexplain._versions import VERSION
from safexplain.errors import ConfigurationError, MissingExtraError, RefusedError, RequestError
from safexplain.serve.http import respond
from safexplain.serve.inputs import ANONYMOUS, numbers
from safexplain.serve.loading import Options
from safexplain.serve.protocol import Intake, Reply, Strict, checked
from safexplain.serve.service import Service

try:
    import mlflow
    from mlflow import pyfunc
    from mlflow.exceptions import MlflowException
    from mlflow.models import Model, ModelSignature
    from mlflow.pyfunc import scoring_server
    from mlflow.types.schema import DataType, ParamSchema, ParamSpec
except ImportError as error:
    raise MissingExtraError(f'{error.name} is missing: pip install "safexplain[mlflow]"', name=error.name) from error

CODE = """from mlflow.models import set_model
from safexplain.serve.mlflow import HardenedModel

set_model(HardenedModel())
"""
"""What is saved as the model: MLflow runs it on loading, and hands the artefacts to `HardenedModel.load_context`."""

SETTINGS = sorted(
    {field.name for field in fields(Options)}
    - {"model", "certificate", "public", "key"}  # artefacts, and what is secret
    - {"uncertified", "explainer", "hardening", "probabilities", "name", "watch"}  # other ways to serve
)
"""What `model_config` may name: arguments of `Service.load`."""

SIGNATURE = ModelSignature(
    params=ParamSchema([ParamSpec("explain", DataType.boolean, False), ParamSpec("client", DataType.string, "")])
)
"""Parameters and defaults; of inputs nothing, as MLflow would refuse float64 beside float32, and quote the rows."""

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
    params: Params = Params()


class HardenedModel(pyfunc.PythonModel):  # type: ignore[misc]
    """A service behind MLflow's `predict`: labels, or with `params={"explain": True}` hardened maps."""

    service: Service
    """Made on loading."""

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
        FileNotFoundError: there is no such file; nothing is written.
        ConfigurationError: `model_config` holds what it must not.
        TypeError: `options` hold what follows from the files (`signature`), or `input_example`, which is a row.
    """
    files = {"model": model_file, "certificate": certificate, "public": public}
    artifacts = {what: str(Path(file).resolve(strict=True)) for what, file in files.items() if file is not None}
    needed = [f"safexplain[mlflow]=={VERSION}", f"torch=={version('torch').partition('+')[0]}"]
    config = dict.fromkeys(SETTINGS) | _settings(model_config or {})  # only what is there can be set on loading
    saving = _SAVING.set(True)
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*input example was not provided")
            code = Path(folder) / "hardened_model.py"
            code.write_text(CODE)
            pyfunc.save_model(
                path=str(path),
                python_model=str(code),
                artifacts=artifacts,
                signature=SIGNATURE,
                input_example=None,
                model_config=config,
                **{"pip_requirements": needed, **options},
            )
    finally:
        _SAVING.reset(saving)


def log_model(name: str, model_file: str | Path, certificate: str | Path, **options: Any) -> Any:
    """`save_model` into the active run, under this name, with the same options and errors: MLflow's `ModelInfo`.

    `options` may hold those of `mlflow.pyfunc.log_model`, too: `registered_model_name`, `tags`, ...
    """
    here = sys.modules[__name__]  # MLflow calls its `save_model`
    return Model.log(None, here, name=name, model_file=model_file, certificate=certificate, **options)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for `Service.load`.

    Raises:
        ConfigurationError: something else than `SETTINGS`.
    """
    given = {name: value for name, value in config.items() if value is not None}
    if unknown := sorted(given.keys() - SETTINGS):
        raise ConfigurationError(
            f"model_config: expected {', '.join(SETTINGS)}; got {', '.join(map(repr, unknown))} "
            "(it is stored and shown in plain text; a key is set where the model is loaded, by SAFEXPLAIN_NOISE_KEY)"
        )
    return given


def _guard() -> None:
    """Have `/invocations` of a hardened model answered here, and that of any other by MLflow as ever.

    `scoring_server.init`, which makes the server's application after the model was loaded, wraps the handler of
    `/invocations` in the decorator that is replaced here.

    Raises:
        RefusedError: this process is a scoring server, and has no such decorator.
    """
    name = "_async_catch_mlflow_exception"
    original = getattr(scoring_server, name, None)
    if original is None and "__pyfunc_model_path__" in os.environ:
        raise RefusedError(
            f"MLflow {mlflow.__version__} puts rows and tracebacks into its answers, and there is no known way to stop "
            "this version: use one that docs/platforms.md names, or `safexplain serve`"
        )
    if original is None or original.__module__ == __name__:
        return

    def catching(handler: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            hardened = inspect.getclosurevars(handler).nonlocals["model"].unwrap_python_model()
        except (AttributeError, MlflowException):
            hardened = None
        if not isinstance(hardened, HardenedModel):
            return original(handler)
        intake = Intake(hardened.service)

        @wraps(handler)
        async def answer(request: Any) -> Any:
            return await respond(request, intake, "invocations", invoke, tables=True)

        return answer

    setattr(scoring_server, name, catching)


def invoke(service: Service, payload: Any, client: str) -> Reply:
    """One of `FORMATS`, and `params` with `explain` -> {"predictions": labels, or hardened maps}.

    Arguments and errors as `explain_v1`; no parameter says who asks.
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
    x, explain = numbers(rows, given[0]), request.params.explain
    answer = (service.explain if explain else service.predict)(x, client=client)
    return Reply({"predictions": answer.explanation if explain else answer.label}, answer)
