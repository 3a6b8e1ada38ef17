"""Checks of scikit-learn's `check_estimator` that our estimators fail, with the reasons.

All follow from the guarantees, such as public values that are declared and never read off the data."""

from typing import Any

import numpy as np

LABELS = "classes is a public list, but the check uses labels that are not in it"
COLUMNS = "its columns are declared by name, but the check uses others; it learns nothing from data"
SCORE = "score(x) is the noised logit of a query, not the accuracy of predictions"
MADE = "parameters are checked at construction, before anything is trained, charged or released"
DEFAULTS = "the default cost is an object, but scikit-learn expects numbers, texts and the like"
KEPT = "public parameters are part of a guarantee and cannot change"

_TWO_CLASSES = """
check_dict_unchanged check_dont_overwrite_parameters check_dtype_object check_estimators_dtypes
check_estimators_fit_returns_self check_estimators_overwrite_params check_f_contiguous_array_estimator
check_fit2d_1feature check_fit2d_predict1d check_fit_score_takes_y check_methods_sample_order_invariance
check_methods_subset_invariance check_n_features_in_after_fitting check_pipeline_consistency
check_positive_only_tag_during_fit check_readonly_memmap_input
"""
_THREE_CLASSES = """
check_dtype_object check_classifiers_classes check_classifiers_train check_decision_proba_consistency
"""
_DECLARED = """
check_complex_data check_dict_unchanged check_dtype_object check_estimator_sparse_tag check_estimators_dtypes
check_estimators_empty_data_messages check_estimators_nan_inf check_estimators_overwrite_params
check_estimators_pickle check_f_contiguous_array_estimator check_fit1d check_fit2d_predict1d check_fit_idempotent
check_fit_score_takes_y check_methods_sample_order_invariance check_methods_subset_invariance check_n_features_in
check_n_features_in_after_fitting check_pipeline_consistency check_transformer_data_not_an_array
check_transformer_general check_transformer_preserve_dtypes check_transformers_unfitted_stateless
"""
_MECHANISM = {
    "check_do_not_raise_errors_in_init_or_set_params": MADE,
    "check_parameters_default_constructible": DEFAULTS,
}
_SCORES = "check_fit_score_takes_y check_n_features_in_after_fitting check_pipeline_consistency"

EXPECTED: dict[str, dict[str, str]] = {
    "DPLogisticRegression": dict.fromkeys(_THREE_CLASSES.split(), LABELS),
    "DPModelRecourse": _MECHANISM,
    "LaplaceScore": dict.fromkeys(_TWO_CLASSES.split(), LABELS) | dict.fromkeys(_SCORES.split(), SCORE) | _MECHANISM,
    "Preprocessing": dict.fromkeys(_DECLARED.split(), COLUMNS)
    | {
        "check_do_not_raise_errors_in_init_or_set_params": MADE,
        "check_no_attributes_set_in_init": MADE,
        "check_parameters_default_constructible": "a preprocessing needs at least one feature",
        "check_set_params": KEPT,
    },
}
"""Class -> check -> why it fails, for `DPLogisticRegression` with classes 0 to 2 and for mechanisms with a private
model with classes 0 to 4; for others, `expected_failed_checks` adds the checks that use unlisted labels."""

_LISTED = {"DPLogisticRegression": range(3), "DPModelRecourse": range(5)}
_OTHER_LABELS = f"""{_TWO_CLASSES}
check_classifier_data_not_an_array check_estimators_nan_inf check_estimators_pickle check_fit2d_1sample
check_fit_check_is_fitted check_fit_idempotent check_n_features_in check_supervised_y_2d
"""


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """Check -> reason, for `check_estimator` and `parametrize_with_checks`."""
    name = next((kind.__name__ for kind in type(estimator).__mro__ if kind.__name__ in EXPECTED), "")
    found = dict(EXPECTED.get(name, {}))
    classes = getattr(estimator, "classes", None)
    if name in _LISTED and classes is not None and not set(_LISTED[name]) <= set(np.asarray(classes).tolist()):
        found |= {check: LABELS for check in _OTHER_LABELS.split() if check not in found}
    return found
