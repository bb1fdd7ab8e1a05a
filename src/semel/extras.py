"""The command that installs a missing extra, by the way in which the running Semel was installed."""

from __future__ import annotations

import json


def install_command(extra: str) -> str:
    """The command that installs an extra, for error messages.

    Parameters: ``extra`` its name, such as ``"postgresql"``.

    A Semel that came from a folder, a file or a repository is not to be had by its name: the command names where it
    came from, as pip noted it (PEP 610).

    >>> install_command("postgresql").startswith("pip install ")
    True
    """
    from importlib.metadata import PackageNotFoundError, distribution  # only where something is missing: they are large

    try:
        noted = distribution("semel").read_text("direct_url.json")
    except PackageNotFoundError:
        noted = None
    return command_from(extra, noted)


def command_from(extra: str, noted: str | None) -> str:
    """The command, from what pip noted of the installation (None: it came from an index).

    >>> command_from("redis", None)
    "pip install 'semel[redis]'"
    >>> command_from("redis", '{"url": "file:///home/me/semel", "dir_info": {"editable": true}}')
    "pip install -e '/home/me/semel[redis]'"
    >>> command_from("redis", '{"url": "https://git.example/semel", "vcs_info": {"vcs": "git", "commit_id": "1f0"}}')
    "pip install 'semel[redis] @ git+https://git.example/semel@1f0'"
    """
    from urllib.parse import unquote, urlsplit

    named = f"semel[{extra}]"
    how = ""
    if noted is not None:
        source = json.loads(noted)
        url = source["url"]
        if "vcs_info" in source:
            named += f" @ {source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}"
        elif url.startswith("file:"):
            named = f"{unquote(urlsplit(url).path)}[{extra}]"
            how = "-e " if source.get("dir_info", {}).get("editable") else ""
        else:
            named += f" @ {url}"
    return f"pip install {how}'{named}'"
