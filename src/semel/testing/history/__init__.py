"""Histories of real processes, and the proof that each key behaved like one record.

A :class:`~semel.testing.history.recorder.Recorder` writes what a process asked and was told, one JSON line an event,
so that a killed process leaves everything up to its death. ``python -m semel.testing.history check`` reads the files of
all processes and looks, for every key, for an order of the operations that one record could have had.
"""
