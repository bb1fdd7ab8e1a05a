"""The browser module ``semel.js``, and two tiny applications that serve it."""

from semel.http.browser.serving import SOURCE, StaticApp, StaticWsgiApp

__all__ = ["SOURCE", "StaticApp", "StaticWsgiApp"]
