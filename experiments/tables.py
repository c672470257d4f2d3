"""The tables and figures of the paper's experiments and of the questions beyond them, from result files.

    python experiments/tables.py [--results DIR] [--out DIR]

Reads every RESULTS/EXPERIMENT/RUN.json and every paper/NAME.toml; writes markdown and PNG files into OUT/NAME. Of the
questions beyond the paper it reads every RESULTS/contexts/CONFIGURATION-seedN.json and targets.toml; OUT/contexts has
their tables. A row without a result says "not run"; a target that was not reached says so.
"""

import argparse
import sys
from pathlib import Path

from report import build, read_answers, read_papers, read_results

from bhc.errors import BhcError

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE / "tables")
    arguments = parser.parse_args()
    try:
        papers = read_papers(HERE / "paper")
        results = read_results(arguments.results, papers)
        answers = read_answers(arguments.results, HERE / "configs" / "contexts", HERE / "targets.toml", papers)
        written = build(results, papers, arguments.out, answers)
    except BhcError as error:
        print(error, file=sys.stderr)
        return 2
    for reason in (*results.set_aside, *answers.set_aside):
        print(f"set aside: {reason}", file=sys.stderr)
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
