"""A classifier behind its preprocessing: the columns of its last step, and the user's columns that they come from."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safexplain.errors import InputError
from safexplain.outputs import EstimatorModule

Values = NDArray[Any]
Places = NDArray[np.int64]


OVER_ROWS = ("Normalizer", "TfidfTransformer")


class MixedColumnsError(InputError):
    """A step before the explained one combines several columns."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """The user's rows as the last step of a classifier, alone or a Pipeline, takes them."""

    module: EstimatorModule

    @property
    def steps(self) -> Any:
        """All but the last step, a Pipeline; None if there are none."""
        pipeline = self.module.estimator
        return pipeline[:-1] if len(getattr(pipeline, "steps", ())) > 1 else None

    @property
    def last(self) -> Any:
        """The explained step."""
        pipeline = self.module.estimator
        return pipeline[-1] if hasattr(pipeline, "steps") else pipeline

    @cached_property
    def origins(self) -> Places | None:
        """(p,) the user's column of each column that the last step takes; None: they are the user's.

        Raises:
            MixedColumnsError: a step combines several of the user's columns.
        """
        if self.steps is None:
            return None
        columns = np.arange(self.module.estimator.n_features_in_)
        return _through(self.steps, columns, getattr(self.last, "n_features_in_", None))

    def rows(self, x: Values) -> Any:
        """(n, p) input of the last step for (n, d) numbers: a matrix or a frame."""
        given = self.module.rows(np.asarray(x, dtype=np.float32))
        return given if self.steps is None else self.steps.transform(given)

    def summed(self, values: Values) -> Values:
        """(n, d, ...) of (n, p, ...): the sums of the values of all columns from one user's column."""
        if self.origins is None:
            return values
        columns = range(self.module.estimator.n_features_in_)
        return np.stack([values[:, self.origins == column].sum(axis=1) for column in columns], axis=1)


def _through(step: Any, origins: Places, made: int | None) -> Places:
    """The user's column of each of the `made` columns (None: unknown) of a fitted transformer or "passthrough" whose
    inputs come from `origins`."""
    from sklearn.base import OneToOneFeatureMixin
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_selection import SelectorMixin
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OneHotEncoder

    if isinstance(step, Pipeline):
        widths = [getattr(after, "n_features_in_", None) for _, after in step.steps[1:]]
        for (_, one), width in zip(step.steps, [*widths, made], strict=True):
            origins = _through(one, origins, width)
    elif isinstance(step, ColumnTransformer):
        parts, place = [origins[:0]], step.output_indices_
        taken = step._transformer_to_input_indices
        for name, one, _ in sorted(step.transformers_, key=lambda part: place[part[0]].start or 0):
            if width := len(range(2**31)[place[name]]):
                parts.append(_through(one, origins[taken[name]], width))
        origins = np.concatenate(parts)
    elif isinstance(step, SelectorMixin):
        origins = origins[step.get_support()]
    elif isinstance(step, OneHotEncoder):
        plain = copy.copy(step).set_params(feature_name_combiner=lambda column, category: column)
        names = list(getattr(step, "feature_names_in_", [f"x{i}" for i in range(len(origins))]))
        origins = origins[[names.index(name) for name in plain.get_feature_names_out()]]
    elif isinstance(step, KBinsDiscretizer) and step.encode != "ordinal":
        origins = np.repeat(origins, step.n_bins_)
    elif isinstance(step, SimpleImputer) and step.add_indicator:
        origins = np.concatenate([origins, origins[step.indicator_.features_]])
    elif len(set(origins.tolist())) == 1 and made is not None:
        origins = np.repeat(origins[:1], made)
    elif isinstance(step, FunctionTransformer):
        made = len(origins) if step.func is None or isinstance(step.func, np.ufunc) else -1
    elif not isinstance(step, str | SimpleImputer | OneToOneFeatureMixin) or type(step).__name__ in OVER_ROWS:
        made = -1
    if made is not None and len(origins) != made:
        raise MixedColumnsError(
            f"{type(step).__name__} combines several of your columns, so that values cannot be added up for yours; use"
            " FeatureAblation"
        )
    return origins
