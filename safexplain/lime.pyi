# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from safexplain.explain.aix360.lime import HardenedLimeImage, HardenedLimeTabular, HardenedLimeText
from safexplain.hardening.hardening import Hardening

__all__ = ["LimeImageExplainer", "LimeTabularExplainer", "LimeTextExplainer", "lime_image", "lime_tabular", "lime_text"]

class TextOrTableExplanation(Protocol):
    """`lime.explanation.Explanation`, with hardened weights."""

    local_exp: dict[int, list[tuple[int, float]]]
    class_names: list[str]
    mode: str
    def available_labels(self) -> list[int]: ...
    def as_list(self, label: int = 1, **kwargs: Any) -> list[tuple[str, float]]: ...
    def as_map(self) -> dict[int, list[tuple[int, float]]]: ...
    def as_pyplot_figure(self, label: int = 1, figsize: tuple[float, float] = ..., **kwargs: Any) -> Any: ...
    def as_html(self, labels: Sequence[int] | None = None, **kwargs: Any) -> str: ...
    def save_to_file(self, file_path: str, labels: Sequence[int] | None = None, **kwargs: Any) -> None: ...
    def show_in_notebook(self, labels: Sequence[int] | None = None, **kwargs: Any) -> None: ...

class ImageExplanation(Protocol):
    """`lime.lime_image.ImageExplanation`, with hardened weights."""

    image: NDArray[Any]
    segments: NDArray[Any]
    local_exp: dict[int, list[tuple[int, float]]]
    def get_image_and_mask(
        self,
        label: int,
        positive_only: bool = True,
        negative_only: bool = False,
        hide_rest: bool = False,
        num_features: int = 5,
        min_weight: float = 0.0,
    ) -> tuple[NDArray[Any], NDArray[Any]]: ...

class LimeImageExplainer(HardenedLimeImage):
    """The `LimeImageExplainer` of lime and AIX360, hardened: takes its arguments, and a `hardening` of its weights."""
    def __init__(
        self,
        kernel_width: float | None = 0.25,
        kernel: Callable[..., Any] | None = None,
        verbose: bool = False,
        feature_selection: Literal["forward_selection", "lasso_path", "none", "auto", "highest_weights"] = "auto",
        random_state: int | np.random.RandomState | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def explain_instance(
        self,
        image: NDArray[Any],
        classifier_fn: Callable[[Any], Any],
        labels: Sequence[int] | None = (1,),
        hide_color: float | None = None,
        top_labels: int | None = 5,
        num_features: int = 100000,
        num_samples: int = 1000,
        batch_size: int = 10,
        segmentation_fn: Callable[[Any], Any] | None = None,
        distance_metric: str = "cosine",
        model_regressor: Any = None,
        random_seed: int | None = None,
    ) -> ImageExplanation: ...

class LimeTabularExplainer(HardenedLimeTabular):
    """The `LimeTabularExplainer` of lime and AIX360, hardened.

    Audited and certified (`catalogued`, `from_certificate`) with public rows in the place of the training set, from
    which LIME takes the bins and the spread of its samples: the numbers of a row are the weights of all its features
    for the predicted class, and they are what a service releases. A certificate knows `feature_names`, `class_names`,
    `categorical_features`, `categorical_names`, `kernel_width`, `feature_selection` ("none" unless said, for no feature
    is left out), `discretize_continuous`, `discretizer`, `sample_around_instance` and a whole number as `random_state`,
    and the options `num_samples` and `distance_metric`.

    Args:
        *args: as natively.
        hardening: of the weights of each label; None for `Hardening.recommended()`.
        bins: name features as natively, "0.10 < age <= 0.50", when they are discretised. The numbers are quartiles of
            the training set (or other statistics of it) and are only released when asked for; else "age".
        **kwargs: as natively.
    """
    def __init__(
        self,
        training_data: NDArray[Any],
        mode: str = "classification",
        training_labels: Sequence[Any] | NDArray[Any] | None = None,
        feature_names: Sequence[str] | None = None,
        categorical_features: Sequence[int] | None = None,
        categorical_names: Mapping[int, Sequence[str]] | None = None,
        kernel_width: float | None = None,
        kernel: Callable[..., Any] | None = None,
        verbose: bool = False,
        class_names: Sequence[str] | None = None,
        feature_selection: Literal["forward_selection", "lasso_path", "none", "auto", "highest_weights"] = "auto",
        discretize_continuous: bool = True,
        discretizer: Any = "quartile",
        sample_around_instance: bool = False,
        random_state: int | np.random.RandomState | None = None,
        training_data_stats: Mapping[str, Any] | None = None,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
        bins: bool = False,
    ) -> None: ...
    def explain_instance(
        self,
        data_row: Any,
        predict_fn: Callable[[Any], Any],
        labels: Sequence[int] | None = (1,),
        top_labels: int | None = None,
        num_features: int = 10,
        num_samples: int = 5000,
        distance_metric: str = "euclidean",
        model_regressor: Any = None,
    ) -> TextOrTableExplanation: ...

class LimeTextExplainer(HardenedLimeText):
    """The `LimeTextExplainer` of lime and AIX360, hardened: takes its arguments, and a `hardening` per label."""
    def __init__(
        self,
        kernel_width: float | None = 25,
        kernel: Callable[..., Any] | None = None,
        verbose: bool = False,
        class_names: Sequence[str] | None = None,
        feature_selection: Literal["forward_selection", "lasso_path", "none", "auto", "highest_weights"] = "auto",
        split_expression: str | Callable[[str], list[str]] = "\\W+",
        bow: bool = True,
        mask_string: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        char_level: bool = False,
        *,
        hardening: Hardening | None = None,
        model_digest: bytes | None = None,
    ) -> None: ...
    def explain_instance(
        self,
        text_instance: str,
        classifier_fn: Callable[[Any], Any],
        labels: Sequence[int] | None = (1,),
        top_labels: int | None = None,
        num_features: int = 10,
        num_samples: int = 5000,
        distance_metric: str = "cosine",
        model_regressor: Any = None,
    ) -> TextOrTableExplanation: ...

class lime_image:
    LimeImageExplainer = LimeImageExplainer

class lime_tabular:
    LimeTabularExplainer = LimeTabularExplainer

class lime_text:
    LimeTextExplainer = LimeTextExplainer
