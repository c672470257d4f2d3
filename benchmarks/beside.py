"""Two trainings at once, beside one alone: what each takes, as our commands run and with threads that spin.

    python benchmarks/beside.py --data mnist

LeNet-300-100, 300 steps of learning with ``bhc train`` in processes of their own, on as many threads as torch takes by
itself. Alone and together take turns; seconds are those that the run folders tell, medians over the rounds.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
from timing import Results, options, write

import bhc

SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def train(folder: Path, together: int, words: list[str], said: dict[str, str]) -> list[float]:
    """Seconds of each of so many trainings that run at once."""
    quiet = {name: value for name, value in os.environ.items() if name not in SAID} | said
    runs = [folder / f"run{number}" for number in range(together)]
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "bhc", "train", *words, "--force", "--out", str(run)],
            env=quiet,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for run in runs
    ]
    if any(program.wait() for program in programs):
        raise SystemExit("a training failed")
    return [bhc.load(run).model.training["seconds"] for run in runs]


def measure(folder: Path, words: list[str], said: dict[str, str], rounds: int) -> Results:
    alone, both = [], []
    for _ in range(rounds):
        alone += train(folder, 1, words, said)
        both += train(folder, 2, words, said)
    return {"alone_s": median(alone), "together_s": median(both), "ratio": median(both) / median(alone)}


def main() -> None:
    parser = options(__file__, __doc__, rounds=3)
    parser.add_argument("--data", default="mnist", help="mnist, fashion-mnist or digits (%(default)s)")
    arguments = parser.parse_args()
    steps = "20" if arguments.quick else "300"
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        weights = folder / "weights.safetensors"
        common = ["--model", "lenet-300-100", "--data", arguments.data]
        subprocess.run(
            [sys.executable, "-m", "bhc", "pretrain", *common, "--epochs", "1", "--out", str(weights)], check=True
        )
        words = [*common, "--weights", str(weights), "--steps", steps, "--consolidation-steps", "1"]
        rows = {
            "as our commands run": measure(folder, words, {}, 1 if arguments.quick else arguments.rounds),
            "threads that spin": measure(folder, words, {"OMP_WAIT_POLICY": "active"}, 1),
        }
    for name, row in rows.items():
        print(f"{name}: {row['alone_s']:.1f} s alone, {row['together_s']:.1f} s together, {row['ratio']:.2f} x")
    write(arguments, {"threads": torch.get_num_threads(), "steps": int(steps), "rows": rows})


if __name__ == "__main__":
    main()
