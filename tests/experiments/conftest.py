"""The programs in ``experiments`` find their own packages beside them; so must their tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
