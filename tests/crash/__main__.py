"""Run as many voyages as a number of kills takes, and print their failures: `python -m tests.crash --kills 1000`."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.crash import report
from tests.crash.plan import KILLS, plans
from tests.crash.voyage import Voyage


def sail(seed: int) -> tuple[int, Counter[tuple[str, str]], str]:
    """Run one voyage. Return its seed, its kills and the traceback of its failure, or '' if it passed."""
    folder = Path(tempfile.mkdtemp(prefix="quarterdeck-crash-"))
    voyage = Voyage(folder, seed)
    try:
        voyage.run(plans(seed))
    except Exception:
        return seed, voyage.kills, f"seed {seed}, left in {folder}:\n{traceback.format_exc()}"
    shutil.rmtree(folder)
    return seed, voyage.kills, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, help="of the first voyage; the next ones follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args()
    first = options.seed if options.seed is not None else random.randrange(1_000_000)
    kills: Counter[tuple[str, str]] = Counter()
    failures: list[str] = []
    sys.stdout.write(f"first seed {first}\n")
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(sail, first + number) for number in range(-(-options.kills // KILLS))]
        for done in as_completed(runs):
            seed, found, failure = done.result()
            kills += found
            failures += [failure] if failure else []
            sys.stdout.write(f"{sum(kills.values()):>6} kills, {len(failures)} failures (seed {seed})\n{failure}")
            sys.stdout.flush()
    sys.stdout.write("\n".join(report.lines(kills, failures)) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
