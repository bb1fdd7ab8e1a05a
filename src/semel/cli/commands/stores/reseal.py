"""`semel reseal`: seal all sealed data of a store under the newest key, so that you can remove an old key."""

from __future__ import annotations

import argparse

from semel.admin.failures import UsageFailed
from semel.admin.filters import add_filters, query_of
from semel.cli.arguments import Commands, Parser, add_command
from semel.cli.exits import Exit
from semel.cli.open_store import open_store
from semel.cli.progress import ProgressLine, add_progress
from semel.cli.terminal import Output
from semel.core.model import Find
from semel.sealing.parts import PartsResealed, reseal_parts
from semel.sealing.reseal import OWN, Resealed, reseal
from semel.sealing.sealer import Sealer


def add(commands: Commands[Parser]) -> None:
    """Declare the command."""
    parser = add_command(
        commands,
        "reseal",
        "encrypt stored sealed data again, with the newest key of the ring",
        "semel reseal --dry-run\nsemel reseal --progress\nsemel reseal --plain --operation payments.create",
        "Reads the ring from the file that SEMEL_SEAL_KEYS_FILE names. Safe during live traffic; you may interrupt it "
        "and start it again. Put the new key first, in the file and in the application, before you run it. Without "
        "--state, --operation, --tenant, --caller and --lapsed it also covers details of items and rows, results of "
        "steps, stored requests and stored files. See docs/sealing.md.",
    )
    add_filters(parser)
    parser.add_argument(
        "--plain", action="store_true", help="also seal answers that are stored in clear; name an --operation"
    )
    parser.add_argument("--dry-run", action="store_true", help="count the sealed data of each key; write nothing")
    add_progress(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, out: Output) -> int:
    """Walk the store once."""
    query = query_of(options)
    if options.plain and options.operation is None:
        raise UsageFailed("--plain needs --operation: processes without the ring could not replay the others' answers")
    with open_store(options) as engine:
        sealer = engine.core.sealer
        if not isinstance(sealer, Sealer):
            raise UsageFailed(
                "reseal needs the key ring: SEMEL_SEAL_KEYS_FILE names a file with a line 'NAME BASE64' for each key, "
                "the newest first"
            )
        known = sum(engine.perform("counts", engine.store.counts).values()) if query == Find() else None
        progress = ProgressLine("reseal", asked=options.progress, total=known)

        def tell(so_far: Resealed) -> None:
            progress.tell(so_far.looked_at, f"{so_far.resealed} sealed")

        done = reseal(engine, sealer, query, plain=options.plain, dry_run=options.dry_run, tell=tell)
        progress.end()
        parts = reseal_parts(engine, sealer, dry_run=options.dry_run) if query == Find() else PartsResealed()
    done.changed += parts.changed
    done.unreadable += parts.unreadable
    done.named += parts.named
    for name, count in parts.keys.items():
        done.keys[name or OWN] = done.keys.get(name or OWN, 0) + count
    newest = sealer.key_names[0]
    out.document(
        {
            "lookedAt": done.looked_at,
            "resealed": done.resealed,
            "resealedBeside": parts.resealed,
            "dryRun": options.dry_run,
            "key": newest,
            "foundUnder": dict(sorted(done.keys.items())),
            "plain": done.plain,
            "changedMeanwhile": done.changed,
            "unreadable": done.unreadable,
        }
    )
    verb = "would be sealed" if options.dry_run else "sealed"
    out.say(f"{done.resealed} answers {verb} under {newest!r}; {done.looked_at} records looked at")
    if any(parts.resealed.values()):
        out.say(f"{verb} beside answers: {', '.join(f'{count} {name}' for name, count in parts.resealed.items())}")
    for name, count in sorted(done.keys.items()):
        out.say(f"found under {name!r}: {count}")
    if done.plain and not options.plain:
        out.say(f"stored in clear: {done.plain}")
    if done.changed:
        out.say(f"changed by others meanwhile: {done.changed}; run it again")
    if done.unreadable:
        out.note(
            f"semel: {done.unreadable} cannot be decrypted and are left unchanged: {'; '.join(done.named)}; see "
            "semel doctor"
        )
        return Exit.REFUSED
    return Exit.OK
