"""The run's diary: one JSON object a line, cut back to the checkpoint on a resume."""

import json
from pathlib import Path
from typing import Any

from bhc.files import append_json_line, read_json_lines, write_bytes


class MetricsFile:
    """Appends to ``metrics.jsonl``; a line is written whole or, after a crash, dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        append_json_line(self.path, record, hint="free some space and go on from the last checkpoint with --resume")

    def cut_back_(self, step: int) -> None:
        """Forget what came after ``step``: a resumed run will write it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        write_bytes(self.path, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        return [record for record in read_json_lines(self.path) if isinstance(record.get("step"), int)]
