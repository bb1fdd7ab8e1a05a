"""Conformance tests for any HTTP API: does its ``Idempotency-Key`` endpoint behave as it should?

The catalogue of checks is data (``catalogue.toml``); ``checks/`` performs them over HTTP.
"""

from __future__ import annotations

from semel.conform.attempt import CannotRun
from semel.conform.case import Case, CaseError, load_case, parse_case
from semel.conform.catalogue import Check, load_catalogue
from semel.conform.report import FORMAT, Report, Result
from semel.conform.run import Selection, conform

__all__ = [
    "FORMAT",
    "CannotRun",
    "Case",
    "CaseError",
    "Check",
    "Report",
    "Result",
    "Selection",
    "conform",
    "load_case",
    "load_catalogue",
    "parse_case",
]
