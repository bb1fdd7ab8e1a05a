"""Consumers for brokers: pass messages from a broker's client through an inbox, so that each is handled once.

The application owns the clients: this package imports, connects and closes none.
"""
