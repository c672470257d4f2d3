"""Every exported form against the module it came from, on all test images of its context.

    python benchmarks/agreement.py RUN [RUN ...] --data mnist

For each run the nine pairs of neighbouring classes: largest difference of the logits relative to the largest logit
(ONNX floats, C), and whether all answers are the same (ONNX integers, C, torch); export times of ONNX. Needs gcc.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from timing import Results, options, pairs, write

import bhc
from bhc.formats import onnx_bytes, open_deployed, open_session

FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O2"]
MAIN = """#include <stdio.h>
#include "net.h"
int main(void)
{
    static float input[%d], scores[%d];
    while (fread(input, 4, %d, stdin) == %d) {
        int label = net_predict(input, scores);
        fwrite(&label, 4, 1, stdout);
        fwrite(scores, 4, %d, stdout);
    }
    return 0;
}
"""


def run_in_c(small: bhc.Compressed, images: np.ndarray, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of the compiled header."""
    inputs, outputs = images[0].size, len(small.classes)
    small.to_c(folder / "net.h", overwrite=True)
    (folder / "main.c").write_text(MAIN % (inputs, outputs, inputs, inputs, outputs))
    subprocess.run(["gcc", *FLAGS, "-o", folder / "main", folder / "main.c", "-lm"], check=True)
    done = subprocess.run([folder / "main"], input=images.tobytes(), capture_output=True, check=True)
    rows = np.frombuffer(done.stdout, dtype=[("label", "<i4"), ("scores", "<f4", (outputs,))])
    return rows["label"], rows["scores"]


@torch.no_grad()
def compare(small: bhc.Compressed, images: torch.Tensor, folder: Path) -> Results:
    logits = small.module(images).numpy()
    largest, answers = np.abs(logits).max(), logits.argmax(1)
    pixels = images.numpy().astype(np.float32)
    began = time.perf_counter()
    floats = onnx_bytes(small.network, metadata=small.metadata())
    milliseconds = 1e3 * (time.perf_counter() - began)
    from_floats = open_session(floats).run(None, {"input": pixels})[0]
    integers = onnx_bytes(small.network, weights=bhc.WeightForm.INTEGERS)
    from_integers = open_session(integers).run(None, {"input": pixels})[0]
    labels, scores = run_in_c(small, pixels, folder)
    small.to_torch(folder / "net.pt2", overwrite=True)
    from_torch = open_deployed(folder / "net.pt2").logits(images).numpy()
    return {
        "classes": list(small.classes),
        "images": len(images),
        "onnx_floats_difference": float(np.abs(from_floats - logits).max() / largest),
        "onnx_integers_same_answers": bool((from_integers.argmax(1) == answers).all()),
        "c_difference": float(np.abs(scores - logits).max() / largest),
        "c_same_answers": bool((labels == np.array(small.classes)[answers]).all()),
        "torch_same_answers": bool((from_torch.argmax(1) == answers).all()),
        "onnx_export_ms": milliseconds,
    }


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", default="mnist")
    arguments = parser.parse_args()
    test = bhc.data.load(arguments.data).test
    rows: list[Results] = []
    with tempfile.TemporaryDirectory() as folder:
        for run in arguments.runs:
            model = bhc.load(run)
            for classes in pairs(model, arguments):
                small = model.compress(classes=classes)
                rows.append({"run": run.name, **compare(small, test.restricted_to(small.classes).inputs, Path(folder))})
                print(rows[-1], flush=True)
    same = [key for key in rows[0] if key.endswith("same_answers")]
    print(
        f"{len(rows)} networks: ONNX floats differ by {max(row['onnx_floats_difference'] for row in rows):.1e} at most,"
        f" C by {max(row['c_difference'] for row in rows):.1e}; all answers the same:"
        f" {all(row[key] for row in rows for key in same)};"
        f" ONNX export {median(row['onnx_export_ms'] for row in rows):.1f} ms (median)"
    )
    write(arguments, {"rows": rows})


if __name__ == "__main__":
    main()
