"""Plain functions as commands: ``@command`` runs a function once for each key, and replays its first result."""

from semel.codec.shapes import Codec
from semel.functions.declare import command, this_permit
from semel.functions.declared import ResultNotKept
from semel.functions.once import AsyncOnce, Once, completer
from semel.http.caller import Caller, single_caller

__all__ = [
    "AsyncOnce",
    "Caller",
    "Codec",
    "Once",
    "ResultNotKept",
    "command",
    "completer",
    "single_caller",
    "this_permit",
]
