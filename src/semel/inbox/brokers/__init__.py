"""Consumers of brokers, each handling a message once: what comes from a broker's own client goes through an inbox.

The clients are their user's: nothing is imported here, connected or closed.
"""
