"""The programs in ``benchmarks`` find their modules beside them; so must their tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
