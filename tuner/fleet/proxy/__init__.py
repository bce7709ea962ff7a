"""The data path of ``paceline sidecar``: HTTP/1.1 messages on their way, byte for byte where nothing is steered."""

from tuner.fleet.proxy.options import ProxyOptions
from tuner.fleet.proxy.origin import Origin, OriginError, parse_origin
from tuner.fleet.proxy.server import Proxy, serve_proxy

__all__ = ["Origin", "OriginError", "Proxy", "ProxyOptions", "parse_origin", "serve_proxy"]
