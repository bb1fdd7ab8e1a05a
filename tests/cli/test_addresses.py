"""An address that cannot be connected to is refused at once, in one line that names the option and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.cli.main import main

CASE = '[request]\npath = "/p"\njson = {a = 1}\n[effects]\nfile = "x"\n'
OPERATIONS = 'caller = "none"\n[[operation]]\nname = "pay"\npath = "/p"\n'
COMMANDS = {
    "ADDRESS": ["send", "POST", "{}", "--body", "1"],
    "URL": ["conform", "{}", "--case", "case.toml"],
    "--upstream": ["proxy", "--config", "operations.toml", "--upstream", "{}", "--store", "sqlite:///semel.db"],
    "--upstream ": ["gate", "--config", "gate.toml", "--upstream", "{}"],
    "--sink": ["worker", "--once", "--sink", "{}"],
}
SECRET = "s3cr3t"
WRONG = [
    "http://[",
    "http://[::1",
    "http://[zz]",
    "http://",
    "http:///x",
    "http://host:99999",
    "http://host:port",
    f"http://alice:{SECRET}/x@host",
    "http://a b",
    "http://a\0b",
    "http://host\n",
    "http://a..b",
    "https://..",
    "http://%zz",
    "http://" + "a" * 64,
    "http://h\u2100st",
]


@pytest.mark.parametrize("option", COMMANDS)
@pytest.mark.parametrize("address", WRONG)
def test_a_wrong_address_is_one_line_that_names_the_option_and_the_remedy(
    option: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMEL_URL", "sqlite:///semel.db")
    Path("case.toml").write_text(CASE)
    Path("operations.toml").write_text(OPERATIONS)
    Path("gate.toml").write_text(OPERATIONS.partition("\n")[2])
    if option == "--sink":
        assert main(["migrate"]) == 0
    capsys.readouterr()
    assert main([word.replace("{}", address) for word in COMMANDS[option]]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1, said
    assert option.strip() in said
    assert "://" in said or "write" in said or "leave it out" in said
    assert SECRET not in said
    assert not Path("intents.db").exists()  # nothing is kept for a command that cannot be sent
