"""Headers are compiled as strictly as gcc can, run, and compared with the module."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, WeightForm, c_memory, c_memory_if_any, c_obstacle, c_text, identifier

from .chains import CHAINS, GRAPHS, TORCH_REMARKS, assert_alike, graph_of, inputs, quantised
from .graphs import wired

GCC = shutil.which("gcc")
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
pytestmark = [TORCH_REMARKS, pytest.mark.skipif(GCC is None, reason="gcc is not installed")]

MAIN = """
#include <stdio.h>
static float input[{inputs}], scores[{outputs}];
static void answer(int (*predict)(const float *, float *))
{{
    float label = (float)predict(input, scores);
    fwrite(scores, sizeof(float), {outputs}, stdout);
    fwrite(&label, sizeof(float), 1, stdout);
}}
int main(void)
{{
    while (fread(input, sizeof(float), {inputs}, stdin) == {inputs}) {{ {calls} }}
    return 0;
}}
"""


def build(folder: Path, source: str) -> Path:
    (folder / "main.c").write_text(source)
    command = [str(GCC), *STRICT, "-O1", "main.c", "-o", "main", "-lm"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return folder / "main"


def run(folder: Path, network: QuantisedNetwork, x: torch.Tensor) -> torch.Tensor:
    """Scores and the label of every input in each of the three forms, all in one program: (N, 3, outputs + 1)."""
    for form in WeightForm:
        (folder / f"{form.name}.h").write_text(c_text(network, form.name, weights=form))
    includes = "".join(f'#include "{form.name}.h"\n' for form in WeightForm)
    calls = " ".join(f"answer({form.name}_predict);" for form in WeightForm)
    outputs = len(network.labels)
    program = build(folder, includes + MAIN.format(inputs=x[0].numel(), outputs=outputs, calls=calls))
    answer = subprocess.run([program], input=x.numpy().tobytes(), capture_output=True, check=True, timeout=60)
    numbers = np.frombuffer(answer.stdout, dtype=np.float32).copy()
    return torch.from_numpy(numbers).view(len(x), len(WeightForm), outputs + 1)


def assert_answers_as_the_module(folder: Path, network: QuantisedNetwork) -> None:
    x = inputs(network.input_shape)
    expected = network.graph(x)
    labels = [network.labels[place] for place in expected.argmax(1).tolist()]
    for given in run(folder, network, x).unbind(1):
        assert_alike(given[:, :-1], expected, part=1e-4)
        assert given[:, -1].int().tolist() == labels


@pytest.mark.parametrize("name", CHAINS)
def test_compiled_headers_of_all_forms_answer_as_the_module(name: str, tmp_path: Path) -> None:
    assert_answers_as_the_module(tmp_path, quantised(name))


@pytest.mark.parametrize("step", [1e-9, 0.6, 50.0])
def test_codes_of_any_width_are_read_back(step: float, tmp_path: Path) -> None:
    assert_answers_as_the_module(tmp_path, quantised("plain-conv", step=step))


def test_layers_without_codes_stay_floats_in_every_form(tmp_path: Path) -> None:
    chain, shape = graph_of("relu")
    codes = {"fc2": Codes.of(chain.fc2.weight, 0.05)}
    network = QuantisedNetwork.build(chain, weights=codes, biases={}, input_shape=shape, labels=(0, 1, 1000))
    assert_answers_as_the_module(tmp_path, network)


SIZES = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "float": 4}


@pytest.mark.parametrize("form", WeightForm)
@pytest.mark.parametrize("name", CHAINS)
def test_a_header_needs_no_heap_and_tells_the_memory_that_its_declarations_take(name: str, form: WeightForm) -> None:
    network = quantised(name)
    text, memory = c_text(network, "net", weights=form), c_memory(network, weights=form)
    included = set(re.findall(r"#\s*include\s*(.*)", text))
    assert included <= {"<stdint.h>", "<math.h>"}
    assert not re.search(r"\b(malloc|calloc|realloc|alloca|free|printf)\b", text)
    assert ("<math.h>" in included) == bool(re.search(r"\b(expf|expm1f|tanhf|erff|logf|cosf|sinf|sqrtf)\(", text))
    constants = re.findall(r"^static const (\w+) \w+\[(\d+)\] = \{([^}]*)\}", text, re.MULTILINE)
    buffers = re.findall(r"^ +float \w+\[(\d+)\];", text, re.MULTILINE)
    assert memory.flash == sum(SIZES[kind] * int(count) for kind, count, _ in constants)
    assert memory.ram == 4 * sum(map(int, buffers))
    assert memory.total == memory.flash + memory.ram
    for told in (f"flash: {memory.flash} bytes", f"RAM: {memory.ram} bytes", f"Together {memory.total} bytes"):
        assert told in text
    assert all(int(count) == len(numbers.split(",")) - 1 for _, count, numbers in constants)


def test_the_caller_s_input_is_left_alone(tmp_path: Path) -> None:
    network = quantised("activation-first")
    (tmp_path / "net.h").write_text(c_text(network, "net"))
    source = """
    #include "net.h"
    int main(void)
    {
        float input[6] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, scores[3];
        int i;
        net_predict(input, scores);
        for (i = 0; i < 6; i++) if (input[i] != (float)(i + 1)) return 1;
        return 0;
    }
    """
    assert subprocess.run([build(tmp_path, source)], check=False).returncode == 0


@pytest.mark.parametrize("names", [("first", "second"), ("net", "NET"), ("net", "net_fc1")])
def test_two_headers_live_in_one_file(names: tuple[str, str], tmp_path: Path) -> None:
    for place, name in enumerate(names):
        (tmp_path / f"{place}.h").write_text(c_text(quantised("silu"), name, weights=WeightForm.BIT_PACKED))
    source = f"""
    #include "0.h"
    #include "1.h"
    #include "0.h"
    static float input[18], scores[3];
    int main(void) {{ return {names[0]}_predict(input, scores) != {names[1]}_predict(input, scores); }}
    """
    assert subprocess.run([build(tmp_path, source)], check=False).returncode == 0


def test_narrower_forms_take_less_flash() -> None:
    network = quantised("plain-conv", step=0.3)
    packed, integers, floats = (c_memory(network, weights=form).flash for form in reversed(WeightForm))
    assert packed < integers < floats
    assert c_memory(network) == c_memory(network, weights=WeightForm.INTEGERS)


def test_the_compiled_constants_are_as_large_as_told(tmp_path: Path) -> None:
    """What the compiler lays out, not what the text says."""
    network = quantised("everything-at-once")
    (tmp_path / "net.h").write_text(c_text(network, "net"))
    (tmp_path / "main.c").write_text('#include "net.h"\nint f(float *x) { return net_predict(x, x); }')
    subprocess.run([str(GCC), "-std=c99", "-O0", "-c", "main.c", "-o", "main.o"], cwd=tmp_path, check=True, timeout=60)
    symbols = subprocess.run(["nm", "-S", "main.o"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    sizes = [int(line.split()[1], 16) for line in symbols.splitlines() if re.search(r" r net_", line)]
    assert sum(sizes) == c_memory(network).flash


def test_what_is_told_about_a_network_cannot_end_the_comment(tmp_path: Path) -> None:
    text = c_text(quantised("relu"), "net", about={"context": "*/ int x = /* 1; /*/ \n */ int y;"})
    assert "context: * / int x = / * 1;" in text
    (tmp_path / "net.h").write_text(text)
    build(tmp_path, '#include "net.h"\nint main(void) { return 0; }')


@pytest.mark.parametrize("name", ["", "3d", "a-b", "a b", "a\n", "é", "x;int y", "a.b"])
def test_a_name_that_c_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(BhcError, match="C name") as caught:
        c_text(quantised("relu"), name)
    assert "letters" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "name"), [("small", "small"), ("3-4", "net_3_4"), ("a b.c", "a_b_c"), ("", "network"), ("é", "_")]
)
def test_any_text_has_a_nearest_name(text: str, name: str) -> None:
    assert identifier(text) == name
    c_text(quantised("one-layer"), identifier(text))


OBSTACLES = {
    "residual": "step 'sum' is a Add",
    "concat": "step 'together' is a Concat",
    "shortcut-of-zeros": "step 'fewer' is a Subsample",
    "squeeze-and-excite": "step 'swish' is a Hardswish",
    "grouped": "layer 'first' is a grouped convolution",
    "sound": "layer 'first' is a Conv1d",
    "volume": "layer 'first' is a Conv3d",
    "affine": "step 'scaled' is a Affine",
    "normalise-by-channel": "step 'normalise' normalises channel by channel",
    "a-value-met-by-itself": "step 'square' is a Multiply",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_c_lacks_is_refused_by_name(name: str) -> None:
    network = quantised(name)
    obstacle = c_obstacle(network)
    assert obstacle is not None
    assert OBSTACLES.get(name, "") in obstacle
    for write in (lambda: c_text(network, "net"), lambda: c_memory(network)):
        with pytest.raises(BhcError, match="in C") as caught:
            write()
        assert obstacle in str(caught.value)
        assert "ONNX" in caught.value.hint


def test_a_value_that_is_read_twice_is_refused_in_c() -> None:
    """Each of these steps has a C form; together they do not."""
    graph = wired(("fc1", nn.Linear(4, 3)), ("side", nn.ReLU()), ("fc2", nn.Linear(3, 2), "fc1"))
    network = QuantisedNetwork(graph.requires_grad_(False), (4,), (0, 1))
    with pytest.raises(BhcError, match="more than one step"):
        c_text(network, "net")


def test_maps_of_outputs_are_refused_in_c() -> None:
    graph = wired(("first", nn.Conv2d(1, 3, 3)), ("end", nn.Conv2d(3, 2, 1)))
    network = QuantisedNetwork(graph.requires_grad_(False), (1, 6, 6), (0, 1))
    with pytest.raises(BhcError, match=r"outputs are of shape \(2, 4, 4\)"):
        c_text(network, "net")
    assert c_memory_if_any(network) is None
