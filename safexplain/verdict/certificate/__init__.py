"""Certificates: in-toto statements about one model and one configuration. No torch.

`write` makes a statement of an audit's result and digests it; `sign` puts it into a signed envelope and verifies one;
`read` takes a file through these, checks every field and computes the verdict again from the counts; `versions` is what
a certificate says it was made with. `docs/schema` has the JSON Schema.
"""

from safexplain._versions import versions
from safexplain.verdict.certificate.read import load_certificate
from safexplain.verdict.certificate.sign import sign_certificate
from safexplain.verdict.certificate.write import statement, write_json

__all__ = ["load_certificate", "sign_certificate", "statement", "versions", "write_json"]
