"""The edge in front of a service: configurations for proxies, and a gate of our own (docs/gateway.md)."""

from semel.gateway.gate import KeyGate
from semel.gateway.guarded import Guarded

__all__ = ["Guarded", "KeyGate"]
