"""Certificates: in-toto statements about one model and one configuration. No torch."""

from safexplain._versions import versions
from safexplain.verdict.certificate.read import load_certificate
from safexplain.verdict.certificate.write import sign_certificate, statement, write_json

__all__ = ["load_certificate", "sign_certificate", "statement", "versions", "write_json"]
