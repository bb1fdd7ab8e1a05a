"""Consumers for brokers: pass messages from a broker's client through an inbox, so that each is handled once.

The clients are their user's: nothing is imported here, connected or closed.
"""
