"""Whole configurations of four proxies, made from the declared operations.

Each proxy refuses a missing or malformed key with the service's own problem document, passes keys on byte by byte, asks
another upstream only for a command that has a key, waits longer than the service, and writes no key to a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from semel.errors import ConfigurationError
from semel.gateway.guarded import KEY, KEY_HEADER, Guarded, longest, refusal, sort_by_precision
from semel.http.problems import INVALID_KEY, MISSING_KEY, Kind, Problems

_ADDRESS: Final = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):([0-9]{1,5})")
_TYPE: Final = "type.googleapis.com/envoy.extensions"
_LUA: Final = "envoy.filters.http.lua"
_REQUESTS_AT_ONCE: Final = 1024  # Envoy's own limit of requests to a cluster
_PROGRAM_SIZE: Final = 20_000  # RE2's program size for the key grammar is 3,580; Envoy allows 100 by default


@dataclass(frozen=True, slots=True)
class Edge:
    """The input of a configuration.

    Parameters: ``operations`` that are guarded; ``upstreams`` as ``host:port``, which share one store; ``listen`` as
    ``host:port``; ``problems`` how refusals are written; ``seconds`` until an upstream's answer, None for longer than
    the service's own waits.

    Raises ConfigurationError if an address or the list of operations cannot be used.
    """

    operations: Sequence[Guarded]
    upstreams: Sequence[str]
    listen: str = "127.0.0.1:8000"
    problems: Problems = field(default_factory=Problems)
    seconds: int | None = None

    def __post_init__(self) -> None:
        if not self.operations:
            raise ConfigurationError("no operation is declared: there is nothing to guard")
        if not self.upstreams:
            raise ConfigurationError("--upstream is missing: name the service, such as 127.0.0.1:8080")
        for name, address in (("--listen", self.listen), *(("--upstream", each) for each in self.upstreams)):
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found[2]) < 65_536:
                raise ConfigurationError(f"{name} must be HOST:PORT, such as 127.0.0.1:8080; it is {address!r}")
        headers = {each.header for each in self.operations if each.header is not None}
        if len(headers) > 1:
            raise ConfigurationError(
                f"operations use different headers for keys: {', '.join(sorted(headers))}; use one"
            )

    @property
    def header(self) -> str:
        """The header with the key."""
        return next((each.header for each in self.operations if each.header is not None), KEY_HEADER)

    @property
    def timeout(self) -> int:
        """Seconds until an upstream's answer."""
        return self.seconds or longest(self.operations)

    @property
    def guarded(self) -> list[Guarded]:
        """The operations in the order in which they are tried, without those whose key is not in a header."""
        return [each for each in sort_by_precision(self.operations) if each.header is not None]

    def document(self, kind: Kind) -> str:
        """Return a refusal's document, without characters that are special in configurations."""
        text = refusal(kind, self.problems)[1].decode("ascii")
        if set("'\\`$") & set(text):
            raise ConfigurationError("type_base holds a quote, a backslash or a dollar: no configuration can hold it")
        return text

    def about(self, mark: str, *lines: str) -> str:
        """Return the comment at the top of a configuration."""
        operations = sort_by_precision(self.operations)
        named = [f"  {'|'.join(each.methods)} {_plain(each.path)} ({_plain(each.name)})" for each in operations]
        said = [
            "Written by `semel gateway`; write it again when operations change.",
            "Who owns what: this proxy checks that a key is there and well formed, and may ask another upstream with",
            "the same key. Idempotency itself is the service's: never let a proxy make or change a key.",
            *lines,
            "Operations:",
            *named,
        ]
        return "".join(f"{mark} {each}\n" for each in said)


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() and each.isascii() else "?" for each in text)


def nginx(edge: Edge) -> str:
    """Return a whole ``nginx.conf``."""
    pattern = KEY.replace('"', "")
    variable = edge.header.lower().replace("-", "_")
    classes = "".join(
        f'        "~^({"|".join(each.methods)}) {each.pattern[1:]}" {_class(each)};\n' for each in edge.guarded
    )
    servers = "".join(f"        server {each} max_fails=0;\n" for each in edge.upstreams)
    about = edge.about(
        "#",
        "nginx before 1.23 reads only the first of two header lines: a doubled key is then refused by the service.",
        "Where TLS early data is on, add to each location: proxy_set_header Early-Data $ssl_early_data;",
    )
    proxy = f"""\
            proxy_pass http://semel_service;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_read_timeout {edge.timeout}s;
            proxy_send_timeout {edge.timeout}s;
"""
    return f"""{about}
pid semel-nginx.pid;
error_log stderr error;
events {{}}

http {{
    map $http_{variable} $semel_key {{
        default invalid;
        "" missing;
        "~{pattern}" good;
    }}
    map "$request_method $uri" $semel_operation {{
        default none;
{classes}    }}
    map "$semel_operation:$semel_key" $semel_route {{
        default pass;
        "~^required.*:missing$" missing;
        "~^(required|optional).*:invalid$" invalid;
        "~^(required|optional):good$" again;
    }}
    upstream semel_service {{
{servers}        keepalive 32;
    }}
    log_format semel '$remote_addr [$time_iso8601] "$request_method $uri" $status $body_bytes_sent $request_time '
                     '$upstream_addr $upstream_status $semel_route';
    server {{
        listen {edge.listen};
        access_log semel-access.log semel;
        client_max_body_size 64m;

        location / {{
            error_page 460 = @semel_missing;
            error_page 461 = @semel_invalid;
            error_page 462 = @semel_again;
            error_page 463 = @semel_once;
            if ($semel_route = missing) {{ return 460; }}
            if ($semel_route = invalid) {{ return 461; }}
            if ($semel_route = again) {{ return 462; }}
            if ($request_method !~ "^(GET|HEAD|OPTIONS|POST|PATCH)$") {{ return 463; }}
            proxy_next_upstream error;  # what was sent to an upstream is sent again if it reads; POST and PATCH are not
{proxy}        }}
        location @semel_again {{
            proxy_next_upstream error timeout non_idempotent;  # the same key goes along
            proxy_next_upstream_tries {max(2, len(edge.upstreams))};
{proxy}        }}
        location @semel_once {{
            proxy_next_upstream off;  # nginx takes PUT and DELETE for repeatable, whatever the operation does
{proxy}        }}
        location @semel_missing {{
            default_type application/problem+json;
            add_header Semel-Code {MISSING_KEY.code} always;
            add_header Cache-Control no-store always;
            return 400 '{edge.document(MISSING_KEY)}';
        }}
        location @semel_invalid {{
            default_type application/problem+json;
            add_header Semel-Code {INVALID_KEY.code} always;
            add_header Cache-Control no-store always;
            return 400 '{edge.document(INVALID_KEY)}';
        }}
    }}
}}
"""


def _class(operation: Guarded) -> str:
    return ("required" if operation.required else "optional") + ("" if operation.shared else "_alone")


def haproxy(edge: Edge) -> str:
    """Return a whole ``haproxy.cfg``."""
    rules = ""
    for number, each in enumerate(edge.guarded):
        rules += f"    acl semel_method_{number} method {' '.join(each.methods)}\n"
        rules += f"    acl semel_path_{number} path -m reg '{each.pattern}'\n"
        rules += (
            f"    http-request set-var(txn.semel) str({_class(each)}) "
            f"if semel_method_{number} semel_path_{number} !{{ var(txn.semel) -m found }}\n"
        )
    servers = "".join(f"    server service{number} {each}\n" for number, each in enumerate(edge.upstreams))
    header = edge.header

    def answer(kind: Kind) -> str:
        return (
            f"http-request return status 400 content-type application/problem+json hdr Semel-Code {kind.code} "
            f"hdr Cache-Control no-store string '{edge.document(kind)}'"
        )

    about = edge.about(
        "#",
        "Only a request that fits the buffer (tune.bufsize) is sent to another server; longer ones get a 502 or 504,",
        "and the client's retry with the same key ends them.",
    )
    return f"""{about}
global
    log stdout format raw local0
    tune.bufsize 65536

defaults
    mode http
    log global
    option httplog
    option http-buffer-request
    timeout connect 5s
    timeout client {edge.timeout}s
    timeout server {edge.timeout}s
    timeout http-request 60s

frontend semel
    bind {edge.listen}
{rules}    acl semel_none req.fhdr_cnt({header}) eq 0
    acl semel_one req.fhdr_cnt({header}) eq 1
    acl semel_good req.fhdr({header}) -m reg '{KEY}'
    {answer(MISSING_KEY)} if semel_none {{ var(txn.semel) -m beg required }}
    {answer(INVALID_KEY)} if !semel_none !semel_one {{ var(txn.semel) -m found }}
    {answer(INVALID_KEY)} if semel_one !semel_good {{ var(txn.semel) -m found }}
    {answer(INVALID_KEY)} if {{ req.hdr(Connection) -i -m str {header} }} {{ var(txn.semel) -m found }}
    http-request del-header {header.replace("-", "_")}
    http-request set-var(txn.semel_again) str(yes) if semel_one {{ var(txn.semel) -m str required optional }}
    default_backend semel_service

backend semel_service
    balance roundrobin
    retries {max(2, len(edge.upstreams))}
    option redispatch 1
    retry-on conn-failure empty-response response-timeout
    http-request disable-l7-retry unless {{ var(txn.semel_again) -m found }}
{servers}"""


def envoy(edge: Edge) -> str:
    """Return a whole ``envoy.yaml``, written as JSON, which is YAML too."""
    present = {"name": edge.header.lower(), "present_match": True}
    good = {"name": edge.header.lower(), "string_match": {"safe_regex": {"regex": KEY}}}
    timeout = f"{edge.timeout}s"

    def answer(kind: Kind) -> dict[str, Any]:
        fields = {"content-type": "application/problem+json", "semel-code": kind.code, "cache-control": "no-store"}
        return {
            "direct_response": {"status": kind.status, "body": {"inline_string": edge.document(kind)}},
            "response_headers_to_add": [
                {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
                for key, value in fields.items()
            ],
        }

    def pass_on(retry_on: str) -> dict[str, Any]:
        policy = {
            "retry_on": retry_on,
            "num_retries": max(1, len(edge.upstreams) - 1),
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{_TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
            "host_selection_retry_max_attempts": 5,
        }
        return {"route": {"cluster": "semel_service", "timeout": timeout, "retry_policy": policy}}

    routes: list[dict[str, Any]] = []
    for each in edge.guarded:
        method = {"name": ":method", "string_match": {"safe_regex": {"regex": f"^({'|'.join(each.methods)})$"}}}
        path = {"safe_regex": {"regex": each.pattern}}
        if each.required:
            missing = {**present, "present_match": False}
            routes.append({"match": {**path, "headers": [method, missing]}, **answer(MISSING_KEY)})
        wrong = {**good, "invert_match": True}
        routes.append({"match": {**path, "headers": [method, present, wrong]}, **answer(INVALID_KEY)})
        again = "connect-failure,refused-stream,reset" if each.shared else "connect-failure"
        routes.append({"match": {**path, "headers": [method, good]}, **pass_on(again)})
    unguarded = {
        "typed_per_filter_config": {_LUA: {"@type": f"{_TYPE}.filters.http.lua.v3.LuaPerRoute", "disabled": True}}
    }
    routes.append({"match": {"prefix": "/"}, **pass_on("connect-failure"), **unguarded})
    one_key = f"""\
function envoy_on_request(handle)
  if handle:headers():getNumValues("{edge.header.lower()}") > 1 then
    handle:respond({{
      [":status"] = "400", ["content-type"] = "application/problem+json",
      ["semel-code"] = "{INVALID_KEY.code}", ["cache-control"] = "no-store"
    }}, [==[{edge.document(INVALID_KEY)}]==])
  end
end
"""
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "semel",
        "common_http_protocol_options": {"headers_with_underscores_action": "DROP_HEADER"},
        "use_remote_address": True,  # a client's own x-envoy- headers, which could ask for retries, are dropped
        "access_log": [
            {
                "name": "envoy.access_loggers.stdout",
                "typed_config": {
                    "@type": f"{_TYPE}.access_loggers.stream.v3.StdoutAccessLog",
                    "log_format": {
                        "text_format_source": {
                            "inline_string": "[%START_TIME%] %REQ(:METHOD)% %RESPONSE_CODE% %RESPONSE_FLAGS% "
                            "%UPSTREAM_REQUEST_ATTEMPT_COUNT% %UPSTREAM_HOST% %DURATION%\n"
                        }
                    },
                },
            }
        ],
        "route_config": {"virtual_hosts": [{"name": "semel", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {  # a route matches each line of a header separately, so it cannot detect that there are two
                "name": _LUA,
                "typed_config": {
                    "@type": f"{_TYPE}.filters.http.lua.v3.Lua",
                    "default_source_code": {"inline_string": one_key},
                },
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"},
            },
        ],
    }
    endpoints = [{"endpoint": {"address": _socket(each)}} for each in edge.upstreams]
    sizes = {f"re2.max_program_size.{level}_level": _PROGRAM_SIZE for level in ("error", "warn")}
    document = {
        "layered_runtime": {"layers": [{"name": "semel", "static_layer": sizes}]},
        "static_resources": {
            "listeners": [
                {
                    "name": "semel",
                    "address": _socket(edge.listen),
                    "filter_chains": [
                        {
                            "filters": [
                                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
                            ]
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "semel_service",
                    "type": "STRICT_DNS",
                    "connect_timeout": "5s",
                    # By default only three requests at once may be sent again: the others of a service that dies get
                    # a 503, although a key makes their repetition safe.
                    "circuit_breakers": {"thresholds": [{"max_retries": _REQUESTS_AT_ONCE}]},
                    "load_assignment": {
                        "cluster_name": "semel_service",
                        "endpoints": [{"lb_endpoints": endpoints}],
                    },
                }
            ],
        },
    }
    about = edge.about("#", "Envoy keeps up to 1 MiB of a body for the second upstream; longer ones are sent once.")
    return f"{about}\n{json.dumps(document, indent=2)}\n"


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def caddy(edge: Edge) -> str:
    """Return a whole ``Caddyfile``."""
    field = f"{{header.{edge.header}}}"
    hidden = f"request>headers>{edge.header} delete"

    def log(indent: str) -> str:
        lines = ["format filter {", "    wrap json", "    fields {", f"        {hidden}", "    }", "}"]
        return "".join(f"{indent}{line}\n" for line in lines)

    def matcher(name: str, each: Guarded, expression: str) -> str:
        lines = [f"method {' '.join(each.methods)}", f"path_regexp `{each.pattern}`", f"expression `{expression}`"]
        return f"    {name} {{\n" + "".join(f"        {line}\n" for line in lines) + "    }\n"

    def answer(name: str, kind: Kind) -> str:
        return (
            f"    handle {name} {{\n"
            "        header Content-Type application/problem+json\n"
            f"        header Semel-Code {kind.code}\n"
            "        header Cache-Control no-store\n"
            f"        respond `{edge.document(kind)}` {kind.status}\n"
            "    }\n"
        )

    def proxy(indent: str) -> str:
        lines = [
            f"reverse_proxy {' '.join(edge.upstreams)} {{",
            "    lb_policy round_robin",
            "    lb_try_duration 5s",
            "    transport http {",
            "        dial_timeout 5s",
            f"        response_header_timeout {edge.timeout}s",
            "    }",
            "}",
        ]
        return "".join(f"{indent}{line}\n" for line in lines)

    good, absent = f"{field}.matches(r'{KEY}')", f"{field} == ''"
    # Caddy drops what Connection names: the key would be gone before it reaches the service.
    hidden_key = f"    @semel_hidden header_regexp Connection (?i)(^|[,\\s]){re.escape(edge.header)}($|[,\\s])\n"
    blocks = hidden_key + answer("@semel_hidden", INVALID_KEY)
    for number, each in enumerate(edge.guarded):
        names = [f"@semel_{kind}_{number}" for kind in ("missing", "invalid")]
        if each.required:
            blocks += matcher(names[0], each, absent) + answer(names[0], MISSING_KEY)
        blocks += matcher(names[1], each, f"!({absent}) && !({good})") + answer(names[1], INVALID_KEY)
    host, _, port = edge.listen.rpartition(":")
    about = edge.about(
        "#",
        "Caddy asks another upstream only where none was reached: it cannot send a body again. Where an upstream",
        "dies with a command, the client gets a 502, and its retry with the same key ends it.",
    )
    return f"""{about}
{{
    admin off
    auto_https off
    log default {{
        output stderr
{log("        ")}    }}
}}

http://:{port} {{
    bind {host.strip("[]")}
    request_header -{edge.header.replace("-", "_")}
    log {{
        output stdout
{log("        ")}    }}
{blocks}    handle {{
{proxy("        ")}    }}
}}
"""


WRITERS: Final[dict[str, Callable[[Edge], str]]] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "caddy": caddy,
}
"""How each proxy's configuration is written."""
