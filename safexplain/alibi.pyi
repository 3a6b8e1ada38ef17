# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from collections.abc import Callable, Sequence
from typing import Any, Self

from alibi.api.interfaces import Explanation
from numpy.typing import NDArray

from safexplain.explain.alibi import HardenedAnchorImage, HardenedAnchorTabular, HardenedAnchorText
from safexplain.explain.alibi.tables import HardenedAlibiKernelShap, HardenedTreeShap
from safexplain.hardening.hardening import Hardening

__all__ = ["AnchorImage", "AnchorTabular", "AnchorText", "KernelShap", "TreeShap"]

class AnchorImage(HardenedAnchorImage):
    """Hardened AnchorImage: takes its arguments, and `hardening`. See `HardenedAnchors`."""
    def __init__(
        self,
        predictor: Callable[[NDArray[Any]], NDArray[Any]],
        image_shape: tuple[Any, ...],
        dtype: type[Any] = ...,
        segmentation_fn: Any = "slic",
        segmentation_kwargs: dict[Any, Any] | None = None,
        images_background: NDArray[Any] | None = None,
        seed: int | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def explain(
        self,
        image: NDArray[Any],
        p_sample: float = 0.5,
        threshold: float = 0.95,
        delta: float = 0.1,
        tau: float = 0.15,
        batch_size: int = 100,
        coverage_samples: int = 10000,
        beam_size: int = 1,
        stop_on_first: bool = False,
        max_anchor_size: int | None = None,
        min_samples_start: int = 100,
        n_covered_ex: int = 10,
        binary_cache_size: int = 10000,
        cache_margin: int = 1000,
        verbose: bool = False,
        verbose_every: int = 1,
        **kwargs: Any,
    ) -> Explanation: ...

class AnchorTabular(HardenedAnchorTabular):
    """Hardened AnchorTabular: takes its arguments, and `hardening`. See `HardenedAnchors`."""
    def __init__(
        self,
        predictor: Callable[[NDArray[Any]], NDArray[Any]],
        feature_names: list[str],
        categorical_names: dict[int, list[str]] | None = None,
        dtype: type[Any] = ...,
        ohe: bool = False,
        seed: int | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def fit(
        self, train_data: NDArray[Any], disc_perc: tuple[int | float, ...] = (25, 50, 75), **kwargs: Any
    ) -> Self: ...
    def explain(
        self,
        X: NDArray[Any],
        threshold: float = 0.95,
        delta: float = 0.1,
        tau: float = 0.15,
        batch_size: int = 100,
        coverage_samples: int = 10000,
        beam_size: int = 1,
        stop_on_first: bool = False,
        max_anchor_size: int | None = None,
        min_samples_start: int = 100,
        n_covered_ex: int = 10,
        binary_cache_size: int = 10000,
        cache_margin: int = 1000,
        verbose: bool = False,
        verbose_every: int = 1,
        **kwargs: Any,
    ) -> Explanation: ...

class AnchorText(HardenedAnchorText):
    """Hardened AnchorText: takes its arguments, and `hardening`. See `HardenedAnchors`."""
    def __init__(
        self,
        predictor: Callable[[list[str]], NDArray[Any]],
        sampling_strategy: str = "unknown",
        nlp: Any | None = None,
        language_model: Any | None = None,
        seed: int = 0,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
        **kwargs: Any,
    ) -> None: ...
    def explain(
        self,
        text: str,
        threshold: float = 0.95,
        delta: float = 0.1,
        tau: float = 0.15,
        batch_size: int = 100,
        coverage_samples: int = 10000,
        beam_size: int = 1,
        stop_on_first: bool = True,
        max_anchor_size: int | None = None,
        min_samples_start: int = 100,
        n_covered_ex: int = 10,
        binary_cache_size: int = 10000,
        cache_margin: int = 1000,
        verbose: bool = False,
        verbose_every: int = 1,
        **kwargs: Any,
    ) -> Explanation: ...

class KernelShap(HardenedAlibiKernelShap):
    """Hardened KernelShap of alibi: takes its arguments, and `hardening`; see `HardenedAlibi`.

    A certificate knows `feature_names`, `link` and `seed`, and the options `nsamples` and `l1_reg`.
    """
    def __init__(
        self,
        predictor: Callable[[NDArray[Any]], NDArray[Any]],
        link: str = "identity",
        feature_names: list[str] | tuple[str] | None = None,
        categorical_names: dict[int, list[str]] | None = None,
        task: str = "classification",
        seed: int | None = None,
        distributed_opts: dict[Any, Any] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def fit(
        self,
        background_data: NDArray[Any] | Any,
        summarise_background: bool | str = False,
        n_background_samples: int = 300,
        group_names: tuple[str] | list[str] | None = None,
        groups: list[tuple[int] | list[int]] | None = None,
        weights: list[float] | tuple[float] | NDArray[Any] | None = None,
        **kwargs: Any,
    ) -> Self: ...
    def explain(
        self,
        X: NDArray[Any] | Any,
        summarise_result: bool = False,
        cat_vars_start_idx: Sequence[int] | None = None,
        cat_vars_enc_dim: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Explanation: ...

class TreeShap(HardenedTreeShap):
    """Hardened TreeShap of alibi, for forests and boosted trees: takes its arguments, and `hardening`.

    A certificate knows `feature_names` and `model_output` ("raw" unless said), with or without a background.
    """
    def __init__(
        self,
        predictor: Any,
        model_output: str = "raw",
        feature_names: list[str] | tuple[str] | None = None,
        categorical_names: dict[int, list[str]] | None = None,
        task: str = "classification",
        seed: int | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def fit(
        self,
        background_data: NDArray[Any] | Any | None = None,
        summarise_background: bool | str = False,
        n_background_samples: int = 1000,
        **kwargs: Any,
    ) -> Self: ...
    def explain(
        self,
        X: NDArray[Any] | Any,
        y: NDArray[Any] | None = None,
        interactions: bool = False,
        approximate: bool = False,
        check_additivity: bool = True,
        tree_limit: int | None = None,
        summarise_result: bool = False,
        cat_vars_start_idx: Sequence[int] | None = None,
        cat_vars_enc_dim: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Explanation: ...
