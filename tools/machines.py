"""Other machines, played on this one: the numeric tests as other processors would round.

    python -m tools.machines [SETTING ...] [--all] [--list]

Each setting is an environment that torch and its libraries read when they are loaded: a CPU capability, Intel's and
oneDNN's most compatible code, one thread or two. The order of tests is random, and another for each setting. Without
names all settings that this processor has; with ``--all`` the whole suite instead of its numeric part. What comes after
``--`` goes to pytest. Exits with 1 if a test fails.
"""

import argparse
import os
import random
import subprocess
import sys
import time

import torch

CAPABILITIES = ("default", "avx2", "avx512")
SETTINGS: dict[str, dict[str, str]] = {
    **{capability: {"ATEN_CPU_CAPABILITY": capability} for capability in CAPABILITIES},
    "compatible": {"MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "one-thread": {"OMP_NUM_THREADS": "1"},
    "two-threads": {"OMP_NUM_THREADS": "2"},
}
USUAL = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # tests run side by side, and wait for each other


def available() -> list[str]:
    """The settings that this processor has."""
    highest = torch.backends.cpu.get_cpu_capability().lower()
    lacking = CAPABILITIES[CAPABILITIES.index(highest) + 1 :] if highest in CAPABILITIES else CAPABILITIES[1:]
    return [name for name in SETTINGS if name not in lacking]


def run(setting: str, *, everything: bool, seed: int, more: list[str]) -> int:
    """The tests under one setting; pytest's exit status."""
    part = [] if everything else ["-m", "numeric and not long"]
    words = ["-m", "pytest", "--numprocesses", "auto", "--dist", "loadfile", f"--shuffle={seed}", *part, *more]
    return subprocess.run([sys.executable, *words], env=os.environ | USUAL | SETTINGS[setting]).returncode


def main() -> int:
    words = sys.argv[1:]
    more = words[words.index("--") + 1 :] if "--" in words else []
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", choices=[[], *SETTINGS], default=[], metavar="SETTING")
    parser.add_argument("--all", action="store_true", help="the whole suite")
    parser.add_argument("--list", action="store_true", help="the settings that this processor has")
    parser.add_argument("--seed", type=int, help="of the order of tests; default: another each time")
    arguments = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    if arguments.list:
        print("\n".join(available()))
        return 0
    failed = []
    for setting in arguments.settings or available():
        if setting not in available():
            print(f"{setting}: this processor has no such thing, left out", flush=True)
            continue
        seed = random.randrange(1 << 16) if arguments.seed is None else arguments.seed
        print(f"as {setting}, order {seed}: {SETTINGS[setting]}", flush=True)
        began = time.monotonic()
        status = run(setting, everything=arguments.all, seed=seed, more=more)
        print(f"as {setting}: {'passed' if status == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
        failed += [setting] if status else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
