"""Limits that cannot be broken: random models, contexts and limits, each answer measured by other means.

    python -m tools.limits --cases 100000 --seed 0 --jobs 2

A network that is handed out must keep every limit by its real file. A figure that a refusal names as reachable is asked
for in turn and must be had; a count one lower must not. Exits with 1 if a case fails.
"""

import argparse
import multiprocessing
import sys
from functools import partial

import torch
from tools.limits.checking import CASES_A_MODEL, Tally, check_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first model; each has the next")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + -(-arguments.cases // CASES_A_MODEL))
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, torch.set_num_threads, (1,)) as pool:
        for number, part in enumerate(pool.imap(partial(check_model, cases=CASES_A_MODEL), seeds), 1):
            tally.add_(part)
            for failure in part.failures:
                print(failure, flush=True)
            if number % 25 == 0:
                print(tally, file=sys.stderr, flush=True)
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
