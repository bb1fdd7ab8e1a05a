"""Histories of real processes, and the proof that each key behaved like one record.

A :class:`~verification.history.recorder.Recorder` writes a process's requests and replies, one JSON line an event,
so that a killed process leaves everything up to its death. ``python -m verification.history check`` reads the files of
all processes and looks, for every key, for an order of the operations that one record could have had.
"""
