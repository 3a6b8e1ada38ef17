"""The old place of what reads public networks, for the benchmarks that still import it from here."""

from ...shared.run import public_networks as third_party

__all__ = ["third_party"]
