"""`semel reseal`, `export --open`, `doctor`, `show`, `explain`, `move` and `settle` with sealed answers. 4 s."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel import Answer, Engine, Permit, Policy, Sealer
from semel.cli.main import main
from semel.core.model import AnswerKind, Find, Record
from tests.sealing.conftest import NEW, OLD, PAID, SECRET, command

Run = Callable[..., tuple[int, Any, str]]
BOTH = {"2026": NEW, "2025": OLD}


def write_keys(path: Path, ring: dict[str, bytes]) -> None:
    path.write_text("".join(f"{name} {base64.b64encode(key).decode()}\n" for name, key in ring.items()))
    path.chmod(0o600)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the ring, which the commands read."""
    path = tmp_path / "keys"
    write_keys(path, BOTH)
    monkeypatch.setenv("SEMEL_SEAL_KEYS_FILE", str(path))
    return path


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with answers of every kind: seven sealed under an old key, one under the new, one as it is."""
    made = f"sqlite:///{tmp_path / 'semel.db'}"
    engine = Engine.connect(made)
    engine.migrate()
    engine.close()
    with Engine.connect(made, sealer=Sealer({"2025": OLD})) as engine:
        for number in range(7):
            pay(engine, f"old {number}", answers="seal")
        pay(engine, "plain")
        pay(engine, "rebuilt", answers="rebuild", rebuild=lambda done: {"id": done.resource_id})
    with Engine.connect(made, sealer=Sealer(BOTH)) as engine:
        pay(engine, "new", answers="seal")
    return made


def pay(engine: Engine, key: str, **options: Any) -> None:
    def handler(permit: Permit) -> Answer:
        permit.result("payment", "7")
        return PAID

    engine.run(command(key, **options), handler)


@pytest.fixture
def semel(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, json_: bool = True) -> tuple[int, Any, str]:
        code = main([*arguments, "--url", url, *(["--json"] if json_ else [])])
        said = capsys.readouterr()
        return code, json.loads(said.out) if json_ and said.out else said.out, said.err

    return run


def rows(url: str) -> list[Record]:
    with Engine.connect(url) as engine:
        page = engine.perform("find", lambda: engine.store.find(Find(limit=100)))
        found = engine.perform("read", lambda: engine.store.read(tuple(row.id for row in page.records)))
    return [row for row in found if row is not None]


def under(url: str, name: str) -> int:
    return sum((row.body or b"")[:40].count(name.encode()) for row in rows(url) if row.answer_kind == AnswerKind.SEALED)


# --- reseal ---------------------------------------------------------------------------------------


def test_reseal_puts_everything_under_the_newest_key_and_then_has_nothing_to_do(
    url: str, semel: Run, keys: Path
) -> None:
    counted = {"lookedAt": 10, "resealed": 7, "key": "2026", "plain": 1, "changedMeanwhile": 0, "unreadable": 0}
    counted["resealedBeside"] = dict.fromkeys(("details", "steps", "requests", "files"), 0)
    found = {"foundUnder": {"2025": 7, "2026": 1}}
    assert semel("reseal", "--dry-run") == (0, {**counted, **found, "dryRun": True}, "")
    assert under(url, "2025") == 7
    assert semel("reseal")[1] == {**counted, **found, "dryRun": False}
    assert (under(url, "2025"), under(url, "2026")) == (0, 8)
    assert semel("reseal")[1]["resealed"] == 0
    with Engine.connect(url, sealer=Sealer({"2026": NEW})) as engine:
        again = engine.run(command("old 3"), lambda permit: PAID)
    assert (again.answer, again.replayed) == (PAID, True)


def test_reseal_seals_plain_answers_on_request(url: str, semel: Run, keys: Path) -> None:
    code, _, err = semel("reseal", "--plain")
    assert (code, "--plain needs --operation" in err) == (2, True)
    assert semel("reseal", "--plain", "--operation", "pay")[1]["resealed"] == 8
    assert SECRET not in repr(rows(url))
    assert semel("reseal", "--plain", "--operation", "pay")[1]["resealed"] == 0


def test_a_reseal_interrupted_anywhere_can_be_repeated(
    url: str, semel: Run, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.sealing import reseal as sealing

    monkeypatch.setattr(sealing, "AT_ONCE", 2)
    told: list[int] = []

    def cut(so_far: sealing.Resealed) -> None:
        told.append(so_far.resealed)
        if len(told) == 2:
            raise KeyboardInterrupt

    with Engine.connect(url, sealer=Sealer(BOTH)) as engine, suppress(KeyboardInterrupt):
        sealing.reseal(engine, Sealer(BOTH), Find(), tell=cut)
    left = under(url, "2025")
    assert 0 < left < 7
    assert semel("reseal")[1]["resealed"] == left


def test_reseal_names_what_does_not_open_and_leaves_it(url: str, semel: Run, keys: Path) -> None:
    write_keys(keys, {"2026": NEW})
    code, said, err = semel("reseal")
    assert (code, said["resealed"], said["unreadable"], under(url, "2025")) == (1, 0, 7, 7)
    assert "7 cannot be decrypted and are left unchanged: operation " in err
    assert "sealed under '2025'" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "reseal needs the key ring: SEMEL_SEAL_KEYS_FILE"), ("2026 x y", "SEMEL_SEAL_KEYS_FILE: line 1 of")],
)
def test_reseal_without_a_ring_names_the_remedy(
    semel: Run, tmp_path: Path, text: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "keys").write_text(text)
        monkeypatch.setenv("SEMEL_SEAL_KEYS_FILE", str(tmp_path / "keys"))
    code, _, err = semel("reseal")
    assert (code, said in err) == (2, True)


# --- what is shown --------------------------------------------------------------------------------


def test_an_export_opens_sealed_answers_only_on_request(semel: Run, keys: Path) -> None:
    sealed = [json.loads(line) for line in semel("export", "--answers", json_=False)[1].splitlines()]
    assert sum(SECRET in json.dumps(each) for each in sealed) == 1, "the one that is stored as it is"
    assert [each["answerSealedUnder"] for each in sealed if each["answer"] == "SEALED"].count("2025") == 7
    opened = [json.loads(line) for line in semel("export", "--answers", "--open", json_=False)[1].splitlines()]
    assert [json.loads(each["answerBody"])["id"] for each in opened if each["answer"] == "SEALED"] == [7] * 8
    assert {each["answerSealedUnder"] for each in opened} == {None}
    write_keys(keys, {"2026": NEW})
    code, text, err = semel("export", "--answers", "--open", json_=False)
    assert (code, text.count(SECRET)) == (0, 4)  # body and header of the two that open
    assert "(sealed under '2025')" in err


def test_open_needs_answers_and_a_ring(semel: Run) -> None:
    assert "--open is about the answers" in semel("export", "--open", json_=False)[2]
    assert "--open needs the key ring" in semel("export", "--open", "--answers", json_=False)[2]


def test_the_doctor_names_the_keys_in_use_and_those_that_are_missing(semel: Run, keys: Path) -> None:
    def sealing() -> dict[str, Any]:
        [found] = [each for each in semel("doctor")[1]["findings"] if each["check"] == "sealing"]
        return dict(found)

    assert (sealing()["level"], "2025 (7), 2026 (1), all in the ring" in sealing()["detail"]) == ("ok", True)
    write_keys(keys, {"2026": NEW})
    assert (sealing()["level"], "the ring has no key 2025" in sealing()["detail"]) == ("problem", True)
    write_keys(keys, {"2026": OLD, "2025": OLD})
    assert (sealing()["level"], "1 sealed answers cannot be decrypted" in sealing()["detail"]) == ("problem", True)
    keys.chmod(0o644)
    assert "users other than its owner can read their file" in json.dumps(semel("doctor")[1])


def test_the_doctor_without_a_ring_names_the_remedy(semel: Run) -> None:
    [found] = [each for each in semel("doctor")[1]["findings"] if each["check"] == "sealing"]
    assert (found["level"], "SEMEL_SEAL_KEYS_FILE" in found["remedy"]) == ("note", True)


def test_operators_see_no_secret_of_a_record(url: str, semel: Run, keys: Path) -> None:
    from semel.core.identity import uuid_text

    for row in rows(url):
        id = uuid_text(row.operation_id)
        shown, explained = (" ".join(semel(each, id, json_=False)[1].split()) for each in ("show", "explain"))
        assert SECRET not in shown + explained
        if row.answer_kind == AnswerKind.SEALED:
            assert "is kept, sealed under the key '202" in explained
            assert "from a process that has the sealing key" in shown
        if row.answer_kind == AnswerKind.REBUILT:
            assert "it is rebuilt for each retry" in explained
            assert "gets a rebuilt answer" in shown


# --- what is written ------------------------------------------------------------------------------


def test_sealed_and_rebuilt_answers_move_unchanged(url: str, tmp_path: Path, semel: Run) -> None:
    target = f"sqlite:///{tmp_path / 'other.db'}"
    engine = Engine.connect(target)
    engine.migrate()
    engine.close()
    assert main(["move", "--from", url, "--to", target]) == 0
    for key in ("old 1", "new", "plain"):
        with Engine.connect(target, sealer=Sealer(BOTH)) as engine:
            assert engine.run(command(key), lambda permit: PAID).replayed
    with Engine.connect(target) as engine:
        policy = Policy(answers="rebuild", rebuild=lambda done: done.resource_id)
        assert engine.run(command("rebuilt", policy), lambda permit: PAID).answer.body == b'"7"'


def test_an_interrupted_move_continues_after_a_reseal(
    url: str, tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_refused(arguments: tuple[str, ...]) -> tuple[int, str]:
        code = main([*arguments])
        return code, " ".join(capsys.readouterr().err.split())

    target = f"sqlite:///{tmp_path / 'other.db'}"
    engine = Engine.connect(target)
    engine.migrate()
    engine.close()
    move = ("move", "--from", url, "--to", target)
    assert main([*move]) == 0
    assert main(["reseal", "--url", url]) == 0
    code, told = run_refused(move)
    assert code != 0
    assert "under '2026' in the source and under '2025' in the target. Run semel reseal on both" in told
    assert main(["reseal", "--url", target]) == 0
    assert main([*move]) == 0
    plain = ("reseal", "--plain", "--operation", "pay")
    assert main([*plain, "--url", target]) == 0
    code, told = run_refused(move)
    assert code != 0
    assert "as it is in the source and under '2026' in the target. Run semel reseal --plain" in told
    assert main([*plain, "--url", url]) == 0
    assert main([*move]) == 0
    with Engine.connect(target, sealer=Sealer(BOTH)) as engine:
        assert engine.run(command("old 1"), lambda permit: PAID).replayed


def test_an_operators_answer_is_sealed_if_there_is_a_ring(url: str, semel: Run, keys: Path, tmp_path: Path) -> None:
    def fails(permit: Permit) -> Answer:
        raise TimeoutError

    with Engine.connect(url) as engine, suppress(TimeoutError):
        engine.run(command("unknown"), fails)
    [row] = [each for each in rows(url) if each.settled_at is None]
    (tmp_path / "body").write_text(SECRET)
    from semel.core.identity import uuid_text

    answer = ("--status", "201", "--body-file", str(tmp_path / "body"), "--header", "Content-Type: text/plain")
    settle = ("--succeeded", *answer, "--reason", "asked", "--force")
    assert semel("settle", uuid_text(row.operation_id), *settle)[0] == 0
    [row] = [each for each in rows(url) if each.id == row.id]
    assert (row.answer_kind, SECRET in repr(row)) == (AnswerKind.SEALED, False)
    with Engine.connect(url, sealer=Sealer(BOTH)) as engine:
        assert engine.run(command("unknown"), fails).answer.body == SECRET.encode()
