"""The run's diary: one JSON object a line, cut back to the checkpoint on a resume."""

import json
from pathlib import Path
from typing import Any

from bhc.errors import BhcError
from bhc.files import write_bytes


class MetricsFile:
    """Appends to ``metrics.jsonl``; a line is written whole or, after a crash, dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise BhcError(
                f"could not write {self.path}: {error.strerror or error}",
                hint="free some space and go on from the last checkpoint with --resume",
            ) from error

    def cut_back_(self, step: int) -> None:
        """Forget what came after ``step``: a resumed run will write it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        write_bytes(self.path, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        if not self.path.exists():
            return []
        records = []
        for line in self.path.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
        return records
