"""Hardened explanations as an MLflow model: saved with its certificate, never with a key, and loaded as a service."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from safexplain._versions import VERSION
from safexplain.errors import ConfigurationError, RefusedError, needs_extra
from safexplain.serve.inputs import ANONYMOUS, numbers
from safexplain.serve.loading import Options
from safexplain.serve.service import Service

__all__ = ["log_model", "save_model"]

with needs_extra("mlflow"):
    from mlflow import pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types.schema import DataType, ParamSchema, ParamSpec

# The saved model: MLflow runs it on loading, and passes the artefacts to `HardenedModel.load_context`.
CODE = """from mlflow.models import set_model
from safexplain.serve.mlflow import HardenedModel

set_model(HardenedModel())
"""

SETTINGS = sorted(
    {field.name for field in fields(Options)}
    - {"model", "certificate", "public", "key"}  # artefacts, and a secret
    - {"uncertified", "explainer", "hardening", "probabilities", "name", "watch"}  # other ways to serve
)

SIGNATURE = ModelSignature(
    params=ParamSchema([ParamSpec("explain", DataType.boolean, False), ParamSpec("client", DataType.string, "")])
)
"""Parameters and defaults. Inputs are not declared: MLflow would refuse float64 for float32, and quote the rows."""


class HardenedModel(pyfunc.PythonModel):  # type: ignore[misc]
    """A service behind MLflow's `predict`: labels, or with `params={"explain": True}` hardened maps."""

    service: Service  # created by `load_context`

    def load_context(self, context: Any) -> None:
        """Create the service from the artefacts and `model_config`; errors as `Service.load`, and RefusedError if
        MLflow's scoring server loads the model."""
        settings, files = _settings(context.model_config or {}), context.artifacts
        if "__pyfunc_model_path__" in os.environ or "mlflow.pyfunc.scoring_server.app" in sys.modules:
            raise RefusedError(
                "MLflow's scoring server writes rows and tracebacks into responses, and passes no clients' names on;"
                f" use `safexplain serve --model {files['model']} --certificate {files['certificate']}`"
            )
        self.service = Service.load(files["model"], files["certificate"], public=files.get("public"), **settings)

    def predict(
        self,
        context: Any,
        model_input: np.ndarray,  # type: ignore[type-arg,unused-ignore]  # MLflow reads the hint; others would add a signature
        params: dict[str, Any] | None = None,
    ) -> Any:
        """Labels int64 (n,); with `explain` hardened maps float32 (n, ...), or a list of n dictionaries.

        `model_input` is an (n, ...) array, nested lists, or a table with columns in order. `params` has `explain`, and
        `client`, whose budget is charged. Errors as `Service.explain`.
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
    """Save a model and its certificate for MLflow, without any secret.

    Args:
        path: Folder to create.
        model_file: Any model file that `Service.load` reads.
        certificate: Its certificate.
        public: File of public rows.
        model_config: Values of `SETTINGS`, stored in plain text; loading can override them, and should set passwords.
        options: For `mlflow.pyfunc.save_model`: `pip_requirements`, `code_paths`, `metadata`, ...

    Raises:
        FileNotFoundError: a file does not exist; nothing is written.
        ConfigurationError: keys of `model_config` outside `SETTINGS`.
        TypeError: `options` contain `signature` or `input_example`.
    """
    files = {"model": model_file, "certificate": certificate, "public": public}
    artifacts = {what: str(Path(file).resolve(strict=True)) for what, file in files.items() if file is not None}
    needed = [f"safexplain[mlflow]=={VERSION}", f"torch=={version('torch').partition('+')[0]}"]
    config = dict.fromkeys(SETTINGS) | _settings(model_config or {})  # only existing keys can be overridden on loading
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


def log_model(name: str, model_file: str | Path, certificate: str | Path, **options: Any) -> Any:
    """`save_model` into the active run, with the same options and errors; returns MLflow's `ModelInfo`.

    `options` may contain those of `mlflow.pyfunc.log_model` too: `registered_model_name`, `tags`, ...
    """
    flavor = sys.modules[__name__]  # MLflow calls its `save_model`
    return Model.log(None, flavor, name=name, model_file=model_file, certificate=certificate, **options)


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in config.items() if value is not None}
    if unknown := sorted(given.keys() - SETTINGS):
        raise ConfigurationError(
            f"model_config: expected {', '.join(SETTINGS)}; got {', '.join(map(repr, unknown))} "
            "(it is stored in plain text; set the noise key on loading, by SAFEXPLAIN_NOISE_KEY)"
        )
    return given
