"""What the catalog records of an explanation method: facts, in one row of a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from safexplain.explain.captum.explainers import Gradient
from safexplain.explain.captum.layers import default_layer
from safexplain.explain.feature_groups import superpixels
from safexplain.explain.libraries import load

__all__ = ["EXTRAS", "FAMILIES", "LICENCES", "Row", "SearchSpace"]

SearchSpace = Mapping[str, tuple[Any, ...] | list[Any]]
"""Parameter -> values to try: a tuple lists them, a pair in a list is a range."""

FAMILIES = ("gradient", "perturbation", "representation", "approximation")
"""DeepLeak's families of methods (arXiv 2601.03429, section II-A)."""

LICENCES = MappingProxyType(
    {
        "captum": "BSD-3-Clause",
        "safexplain": "Apache-2.0",
        "alibi": "Apache-2.0 up to 0.9.4, Business Source Licence 1.1 from 0.9.5",
        "aix360": "Apache-2.0",
        "lime": "BSD-2-Clause",
        "shap": "MIT",
    }
)
"""Library -> its licence."""

ENTRIES = MappingProxyType({"alibi": "explain", "aix360": "explain", "lime": "explain_instance", "shap": "shap_values"})
"""Library -> the native method that explains rows of a table; the others have `attribute`, which gives maps."""

EXTRAS = MappingProxyType({"alibi": "alibi", "aix360": "aix360", "lime": "aix360", "shap": "shap"})
"""Library -> the extra that brings it; the others come with the base install."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Row:
    """One explanation method.

    Args:
        name: key in `CATALOG`; the hardened class is called Hardened + name.
        source: the native class, or where it stands if the library is an extra ("alibi.explainers:AnchorTabular").
        family: one of `FAMILIES`; "other" for a class outside the catalog.
        citation: where the method was published.
        summary: one sentence.
        of: "input", "layer" or "neuron": what the attributions are of, or for.
        hooks: it registers hooks on the model's modules, so that it must run on a private copy.
        writes: it writes to the model's parameters, so that the copy must have its own.
        needs_relu: it changes what nn.ReLU modules do, and without any it silently is the plain gradient.
        leaf_inputs: Captum wants inputs that require gradients, and warns about others.
        stochastic: it draws from torch's global generator (some also from NumPy's), as natively.
        mixes_batch: an example's answer depends on the others in its batch.
        nt_type: for a NoiseTunnel, the one aggregate that the class stands for.
        search_space: options that do not change what is asked for, with values to try: those of DeepLeak's Table VIII
            (arXiv 2601.03429) where it has them, plus sample counts. `n_segments` and `compactness` are those of
            `safexplain.superpixels`.
        needs: (inputs as a tuple) -> arguments without which the entry cannot be called, a plain choice of them.
    """

    name: str
    source: Any
    family: str
    citation: str
    summary: str
    of: str = "input"
    hooks: bool = False
    writes: bool = False
    needs_relu: bool = False
    leaf_inputs: bool = False
    stochastic: bool = False
    mixes_batch: bool = False
    nt_type: str | None = None
    search_space: SearchSpace = field(default_factory=lambda: _NOTHING, hash=False)
    needs: Callable[[tuple[Tensor, ...]], dict[str, Any]] = field(default=lambda inputs: {}, repr=False, compare=False)

    @property
    def native(self) -> Any:
        """The native class.

        Raises:
            MissingExtraError: its library is not installed.
        """
        if not isinstance(self.source, str):
            return self.source
        module, _, name = self.source.partition(":")
        return getattr(load(module), name)

    @property
    def library(self) -> str:
        """Whose class it is, a key of `LICENCES` for rows of the catalog."""
        module = self.source.partition(":")[0] if isinstance(self.source, str) else self.source.__module__
        return str(module.partition(".")[0])

    @property
    def entry(self) -> str:
        """Name of the native method that explains, see `ENTRIES`."""
        return ENTRIES.get(self.library, "attribute")

    @cached_property
    def target(self) -> bool:
        """Whether the entry takes the explained output as `target`; of rows of a table, ours does."""
        return not self.in_base or self._takes("target")

    @cached_property
    def delta(self) -> bool:
        """Whether natively it can return a convergence delta, which the hardened class refuses."""
        return self.in_base and self._takes("return_convergence_delta")

    def _takes(self, name: str) -> bool:
        """Whether `attribute` has this parameter; a NoiseTunnel passes on what its explainer takes."""
        return self.nt_type is not None or name in inspect.signature(self.native.attribute).parameters

    @property
    def in_base(self) -> bool:
        """Whether the base install brings it, so that `native` can be had."""
        return self.library not in EXTRAS

    @property
    def hardened_name(self) -> str:
        """Name of the hardened class."""
        return f"Hardened{self.name}"

    @property
    def licence(self) -> str:
        """Licence of the native implementation."""
        return LICENCES[self.library]

    def explainer(self, forward_func: Callable[..., Any], layer: nn.Module | None = None) -> Any:
        """The native explainer of a forward function.

        Args:
            forward_func: what is explained. A NoiseTunnel is put over its signed gradient (`Gradient`).
            layer: for methods of layers and neurons; None: `default_layer(forward_func)`.
        """
        if self.nt_type:
            return self.native(Gradient(forward_func))
        if self.of == "input":
            return self.native(forward_func)
        return self.native(forward_func, default_layer(forward_func) if layer is None else layer)

    def options(self, inputs: Tensor | tuple[Tensor, ...], chosen: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Arguments of the native entry for these inputs, beside them and the target.

        Args:
            inputs: as the entry takes them.
            chosen: arguments, which go before the plain choice; among them may be `n_segments` and `compactness` where
                the search space has them: they become the `feature_mask` of `superpixels`, for which the inputs must be
                images.
        """
        options = self.needs(inputs if isinstance(inputs, tuple) else (inputs,))
        if not isinstance(inputs, tuple):
            options = {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}
        options |= {"nt_type": self.nt_type} if self.nt_type else {}
        slic = {
            name: chosen[name] for name in ("n_segments", "compactness") if name in chosen and name in self.search_space
        }
        if slic:
            options["feature_mask"] = superpixels(inputs, **slic)  # type: ignore[arg-type]
        return options | {name: value for name, value in chosen.items() if name not in slic}
