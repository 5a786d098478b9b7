"""``st.info`` and ``stn info``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
import torch

import spatial_transformer as st
from spatial_transformer import checks
from spatial_transformer.cli import main
from spatial_transformer.implementations import choose, operators, reference, torch_native

NUMBA = importlib.util.find_spec("numba") is not None


def reading(image, **options):
    given = {"kernel": "bilinear", "padding": "zeros", "align_corners": False, "antialias": False, **options}
    return checks.reading(image, **given)


def test_it_says_what_calls_do():
    report = st.info()
    assert f"torch {torch.__version__}" in report
    assert st.__version__ in report
    assert "cpu: " in report
    lines = [" ".join(line.split()) for line in report.splitlines()]
    if NUMBA:
        assert "fused available" in lines
        assert "cpu 2D bilinear any padding fused Numba kernels" in lines
        assert "cpu 3D bicubic + antialias any padding fused Numba kernels" in lines
    assert any(line.startswith("cpu 2D Kernel any padding torch plain tensor code") for line in lines)


def test_it_says_what_calls_do_without_kernels(monkeypatch):
    monkeypatch.setattr(operators, "installed", lambda package: False)
    lines = [" ".join(line.split()) for line in st.info().splitlines()]
    assert "fused not available: Numba is not installed" in lines
    assert "cpu 2D bilinear zeros, border, reflection torch F.grid_sample" in lines
    assert any(
        line.startswith("cpu 2D nearest any padding torch plain tensor code") and "halves" in line
        for line in lines
    )
    assert any(line.startswith("cpu 3D bicubic any padding torch plain tensor code") for line in lines)


def test_the_command_prints_the_same(capsys):
    assert main(["info"]) == 0
    assert capsys.readouterr().out.strip() == st.info()


@pytest.mark.parametrize("arguments", [[], ["unknown"]])
def test_wrong_use_is_an_error(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert "usage: stn" in capsys.readouterr().err


def test_it_runs_as_a_program_without_the_extras():
    """typer, rich, numba, triton and onnx made unimportable."""
    script = (
        "import sys\n"
        "for name in ('typer', 'rich', 'numba', 'triton', 'onnx', 'onnxscript', 'onnxruntime', 'scipy'):\n"
        "    sys.modules[name] = None\n"
        "from spatial_transformer.cli import main\n"
        "main(['info'])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "F.grid_sample" in done.stdout


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m spatial_transformer.cli info | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout == f"spatial_transformer {st.__version__}\n"
    assert done.stderr == ""


def test_choice_and_its_reason(monkeypatch):
    image = torch.rand(1, 1, 4, 4)
    if NUMBA:
        chosen = choose("auto", image, reading(image))
        assert (chosen.name, chosen.module) == ("fused", operators)
    assert choose("reference", image, reading(image)).module is reference
    monkeypatch.setattr(operators, "installed", lambda package: False)
    chosen = choose("auto", image, reading(image))
    assert (chosen.name, chosen.module) == ("torch", torch_native)
    assert chosen.reason == "not fused: Numba is not installed"
    with pytest.raises(RuntimeError, match="Numba is not installed"):
        choose("fused", image, reading(image))


def test_export_without_its_extra_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    module = st.SpatialTransformer(st.DenseLocaliser(1, (4, 4)), st.Affine())
    with pytest.raises(ImportError, match=r"pip install .*\[export\]"):
        st.export_onnx(module, torch.rand(2, 1, 4, 4), tmp_path / "model.onnx")
