"""What is released and attacked: one explanation method, of one output, natively and hardened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from safexplain.audit.collect import Explain
from safexplain.errors import ConfigurationError, InputError, SafexplainError
from safexplain.explain import CATALOG, find_row, harden
from safexplain.explain.row import Row
from safexplain.hardening.hardening import Hardening
from safexplain.outputs import Probability, are_probabilities

Output = Literal["probability", "logit"]


@dataclass(frozen=True)
class Method:
    """An explanation method as the command line names it.

    Args:
        row: of the catalog.
        output: explain the probability of the predicted class, or its logit.
        options: extra arguments of `attribute`, and `n_segments` and `compactness` for superpixels.
        softmax: whether probabilities are made from what the model returns; None: looked at in each batch.
    """

    row: Row
    output: Output = "probability"
    options: Mapping[str, Any] = field(default_factory=dict)
    softmax: bool | None = None

    @property
    def title(self) -> str:
        """Readable name."""
        return f"{self.row.name} of the predicted {self.output}"

    def explain(self, hardening: Hardening | None) -> Explain:
        """An `Explain` for `collect_signals`: native where `hardening` is None."""

        def explain(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
            forward = self._forward(model, x)
            explainer = self.row.explainer(forward)
            if hardening is not None:
                explainer = harden(explainer, hardening)
            x = x.detach().clone().requires_grad_(self.row.leaf_inputs)
            try:
                arguments = self.row.options(x, self.options) | ({"target": target} if self.row.target else {})
                attributions: Tensor = explainer.attribute(x, **arguments)
            except SafexplainError:
                raise
            except (TypeError, AssertionError, RuntimeError, ValueError) as error:
                if isinstance(error, torch.cuda.OutOfMemoryError):
                    raise
                raise InputError(f"{self.row.name} cannot explain this model: {str(error).splitlines()[0]}") from None
            return attributions

        return explain

    def _forward(self, model: nn.Module, x: Tensor) -> nn.Module:
        """The module whose output is explained; models that return probabilities already stay as they are."""
        if self.output == "logit":
            return model
        softmax = not gives_probabilities(model, x) if self.softmax is None else self.softmax
        return Probability(model) if softmax else model

    def settled(self, model: nn.Module, x: Tensor) -> Method:
        """The same, having looked once at what the model returns for some examples."""
        return replace(self, softmax=self.output == "probability" and not gives_probabilities(model, x))


def gives_probabilities(model: nn.Module, x: Tensor) -> bool:
    """Whether a model's outputs are probabilities already; one example is too few to tell."""
    device = next((p.device for p in model.parameters()), x.device)
    with torch.no_grad():
        out = model(x.to(device))
    return len(out) > 1 and are_probabilities(out)


def parse_method(name: str, output: str, options: list[str]) -> Method:
    """From the command line's words.

    Raises:
        ConfigurationError: an unknown method or output, or an option that is not NAME=VALUE.
    """
    if output not in ("probability", "logit"):
        raise ConfigurationError(f"--output is probability or logit, got {output!r}")
    values: dict[str, Any] = {}
    for text in options:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigurationError(f"--option takes NAME=VALUE, as n_steps=25; got {text!r}")
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        values[key] = tuple(parsed) if isinstance(parsed, list) else parsed
    row = find_row(name)
    if row.entry != "attribute":
        methods = ", ".join(row.name for row in CATALOG.values() if row.entry == "attribute")
        raise ConfigurationError(f"{row.name} gives no map of numbers to attack; expected one of {methods}")
    return Method(row, "probability" if output == "probability" else "logit", values)


def parse_hardening(text: str) -> tuple[str, Hardening]:
    """(name, hardening) from "recommended", "none", JSON, or the path of a JSON file.

    Raises:
        ConfigurationError: none of these.
    """
    match text.strip():
        case "recommended":
            return "recommended", Hardening.recommended()
        case "none":
            return "native", Hardening.none()
        case stripped if stripped.startswith("{"):
            return "custom", Hardening.from_json(stripped)
    path = Path(text)
    if not path.is_file():
        raise ConfigurationError(f"--hardening is recommended, none, JSON, or a JSON file; got {text!r}")
    return "custom", Hardening.from_json(path.read_text())


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers separated by commas; nothing gives none.

    Raises:
        ConfigurationError: something else.
    """
    try:
        return tuple(float(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ConfigurationError(f"{option} takes numbers separated by commas, got {text!r}") from None


def parse_classes(text: str) -> tuple[int, ...] | None:
    """Class indices separated by commas; nothing gives none, and "all" gives None: every class.

    Raises:
        ConfigurationError: something else.
    """
    if text.strip() == "all":
        return None
    try:
        found = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise ConfigurationError(f"--classes takes class indices separated by commas, or all; got {text!r}") from None
    if min(found, default=0) < 0:
        raise ConfigurationError(f"--classes takes class indices from 0, got {text!r}")
    return found
