"""Coverage-guided fuzzing of one target, with atheris (libFuzzer for Python).

    python -m tests.fuzz keys --seconds 60 --corpus /tmp/keys

reads the seeds of the repository and the folder given, keeps what it finds new in that folder, and stops at the
first input that breaks an oracle: it prints the input, and the command that judges it alone:

    python -m tests.fuzz keys --input crash-1234

`--keep 40` copies the 40 smallest files of the folder into the repository's seeds: libFuzzer keeps no file there that
reached nothing new.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz.corpus import BYTES_MAX, FOLDER, write
from tests.fuzz.targets import NAMES, target

SEED = 20_260_101
INPUT_BYTES_MAX = 2048
TRACED = ["semel", "http_sf", "python_multipart", "tests.fuzz.targets", "tests.rules.slow_canonical"]
REMEDY = (
    "atheris is not installed: pip install atheris (it has wheels for Python 3.11 to 3.13 on Linux). "
    "Without it the same targets run under hypothesis: pytest tests/fuzz"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz one target for some seconds. 0 if nothing was found, 2 for a mistake in the call; libFuzzer's 77 if so."""
    options = _options(argv)
    if options.input is not None:
        one = target(options.target).one
        one(options.input.read_bytes())
        print(f"{options.target}: the oracles hold")
        return 0
    if options.keep is not None:
        kept = sorted((path.read_bytes() for path in options.corpus.iterdir()), key=len)[: options.keep]
        small = [data for data in kept if len(data) <= BYTES_MAX]
        print(f"{options.target}: {write(FOLDER / options.target, small)} seeds")
        return 0
    try:
        atheris: Any = importlib.import_module("atheris")
    except ImportError:
        print(f"tests.fuzz: {REMEDY}", file=sys.stderr)
        return 2
    # The references and the oracles are traced as well: where ours is one opaque pattern, they show the way.
    with atheris.instrument_imports(include=TRACED):
        chosen = target(options.target)
        chosen.one(b"")
    seeds = FOLDER / options.target
    seeds.mkdir(parents=True, exist_ok=True)
    corpus: Path = options.corpus or Path(tempfile.mkdtemp(prefix=f"semel-fuzz-{options.target}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    words = corpus.with_name(corpus.name + ".dict")
    words.write_text("".join(f'"{_quote(token)}"\n' for token in chosen.tokens if 0 < len(token) <= 64))
    arguments = [f"-seed={options.seed}", f"-dict={words}", f"-artifact_prefix={corpus.parent}{os.sep}"]
    arguments += [f"-max_total_time={options.seconds}", f"-max_len={INPUT_BYTES_MAX}", "-timeout=20"]
    arguments += ["-print_final_stats=1", str(corpus), str(seeds)]
    print(f"tests.fuzz: {options.target}, seed {options.seed}, corpus {corpus}", flush=True)
    atheris.Setup([sys.argv[0], *arguments], _count_judgements(chosen.one), enable_python_coverage=True)
    atheris.Fuzz()  # does not return
    return 0


def _options(argv: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=NAMES)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default: 60)")
    parser.add_argument("--corpus", type=Path, help="folder that keeps what is found (default: a new one)")
    parser.add_argument("--seed", type=int, default=SEED, help="of libFuzzer's choices")
    parser.add_argument("--keep", type=int, help="copy the smallest files of --corpus into the seeds, and end")
    parser.add_argument("--input", type=Path, help="judge this one file, and end")
    options = parser.parse_args(argv)
    if options.keep is not None and (options.corpus is None or not options.corpus.is_dir()):
        parser.error("--keep needs --corpus: the folder of a former run")
    if options.seconds < 1:
        parser.error("--seconds must be at least 1")
    return options


def _count_judgements(one: Any) -> Any:
    started = time.monotonic()
    count = 0

    def judge(data: bytes) -> None:
        nonlocal count
        count += 1
        try:
            one(data)
        except BaseException:
            seconds = time.monotonic() - started
            print(f"tests.fuzz: found after {count} inputs, {seconds:.1f} s: {data!r}", file=sys.stderr, flush=True)
            raise

    return judge


def _quote(token: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in token)


if __name__ == "__main__":
    raise SystemExit(main())
