"""Damaged and hostile ``.bhc`` files: each must be refused with a BhcError, or read to a sound network.

    python -m tools.fuzz --count 100000 --seed 0

Makes a handful of valid files, changes them, and reads them. Where a change has the checksum mended the parser
itself is put to the test; where it has not, a file that reads must hold the very network it was made from. Each file
has 400 ms and 100 MB; one that takes longer is timed three times more, and the best counts, for the machine may have
had other things to do. Exits with 1 if a file fails, and saves it.
"""

import argparse
import sys
from pathlib import Path

import torch
from tools.fuzz.judging import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz-failures"), help="folder for files that failed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tally = fuzz(arguments.count, arguments.seed, progress=lambda tally: print(tally, file=sys.stderr, flush=True))
    for number, (content, problem) in enumerate(tally.failures[:100]):
        arguments.out.mkdir(parents=True, exist_ok=True)
        path = arguments.out / f"{number}.bhc"
        path.write_bytes(content)
        print(f"{path}: {problem}")
    print(tally)
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
