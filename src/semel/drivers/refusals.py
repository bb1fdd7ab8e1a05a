"""What every database's driver says alike: a commit or a statement that the handler's own writes were refused for."""

from __future__ import annotations

from typing import Final

BROKEN_RULE: Final = (
    "what the handler wrote breaks this rule of the database: nothing of it remains, and the key is free; correct the "
    "handler, or refuse such a request before it writes"
)
