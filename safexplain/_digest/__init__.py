"""Digests of models, estimators, code, files and arrays, without importing torch."""

from safexplain._digest.digests import OPAQUE_DIGEST as OPAQUE_DIGEST
from safexplain._digest.digests import Undigestable as Undigestable
from safexplain._digest.digests import code_digest as code_digest
from safexplain._digest.digests import digest as digest
from safexplain._digest.digests import estimator_digest as estimator_digest
from safexplain._digest.digests import explained_digest as explained_digest
from safexplain._digest.digests import file_sha256 as file_sha256
from safexplain._digest.digests import model_digest as model_digest
from safexplain._digest.digests import sha256 as sha256
from safexplain._digest.digests import trained_digest as trained_digest
from safexplain._digest.digests import weight_files as weight_files
from safexplain._digest.digests import weights_digest as weights_digest
from safexplain._digest.model_state import is_estimator as is_estimator
from safexplain._digest.model_state import modules_of as modules_of
