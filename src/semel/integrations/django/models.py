"""No models: Semel's tables are made by the store's own migrations when ``manage.py migrate`` has run.

Django tells only applications with this module that it has migrated.
"""
