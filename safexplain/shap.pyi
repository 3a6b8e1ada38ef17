# Written by tests/typed/make_stubs.py from the catalog and the native signatures; change nothing here.

from shap import Cohorts as Cohorts
from shap import Explanation as Explanation
from shap import datasets as datasets
from shap import initjs as initjs
from shap import kmeans as kmeans
from shap import links as links
from shap import maskers as maskers
from shap import plots as plots
from shap import sample as sample
from shap import summary_plot as summary_plot

from safexplain.explain.shap.explainers import HardenedKernelExplainer as KernelExplainer
from safexplain.explain.shap.explainers import HardenedLinearExplainer as LinearExplainer
from safexplain.explain.shap.explainers import HardenedTreeExplainer as TreeExplainer

__all__ = [
    "Cohorts",
    "Explanation",
    "KernelExplainer",
    "LinearExplainer",
    "TreeExplainer",
    "datasets",
    "initjs",
    "kmeans",
    "links",
    "maskers",
    "plots",
    "sample",
    "summary_plot",
]
