"""The shape of the package: which way imports point, what is public, and what importing it costs."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import spatial_transformer as st

ROOT = Path(st.__file__).parent

# Imports point down this table, never up.
LEVELS = [
    {"cli"},
    {"experiments"},
    {"module", "export", "info"},
    {"localisers", "sampling"},
    {"families", "control_points", "implementations", "checks"},
    {"family"},
    {"antialias", "matrices"},
    {"kernels", "coordinates", "modes", "version"},
]
LEVEL = {name: depth for depth, names in enumerate(LEVELS) for name in names}

# Within a level, only these.
BESIDE = {
    "export": {"module"},
    "checks": {"implementations"},
}

# Of one implementation by another. ``job`` is what the fused kernels are asked to do, and of the reference
# they take its constants alone (``test_kernels_take_constants_of_the_reference``).
IMPLEMENTATIONS = {
    "__init__": {"reference", "torch_native", "operators"},
    "torch_native": {"reference"},
    "operators": {"reference", "fused_triton", "fused_numba", "job"},
    "fused_triton": {"triton_cuts", "gpu", "job"},
    "triton_cuts": {"job"},
    "gpu": {"reference", "gpu"},
    "fused_numba": {"reference", "job", "cpu"},
    "cpu": {"reference", "cpu"},
}

# What the fused kernels, and what they share, take of the rest of the library.
FUSED = {
    "job": {"antialias", "coordinates", "matrices"},
    "fused_triton": {"family", "matrices"},
    "triton_cuts": set(),
    "gpu": {"family", "kernels", "matrices"},
    "fused_numba": set(),
    "cpu": {"family", "matrices"},
}

# The parts of the kernels import from left to right, never the other way.
PARTS = {
    "cpu": [
        "bundles", "planes", "patches", "pull", "scatter", "forward", "taps", "aim", "positions", "threads",
        "plan", "lanes", "memory", "jit", "__init__",
    ],
    "gpu": [
        "backward", "gather", "forward", "positions", "taps", "transforms", "pixels", "constants", "__init__",
    ],
}  # fmt: skip

# Imports within experiments/data point down this table, never up or sideways.
DATA_LEVELS = [
    {"commands"},
    {"catalogue", "contact_sheets", "one_class", "bird_views"},
    {"fixed_sets"},
    {"mnist", "svhn", "birds", "backbones", "clutter", "volumes"},
    {"caches"},
    {"distortions", "uci_digits", "fetch"},
    {"package_index", "random_numbers_triton"},
    {"addresses", "archives", "constants", "digits", "places", "random_numbers"},
]
DATA_LEVEL = {name: depth for depth, names in enumerate(DATA_LEVELS) for name in names}

# Imports among the files that make pictures point down this table, never up or sideways.
PICTURE_LEVELS = [
    {
        "pictures_of_digits", "pictures_of_pairs", "pictures_of_volumes", "pictures_of_boxes",
        "pictures_of_house_numbers", "pictures_of_birds",
    },
    {"cases", "tested_digits"},
    {"pictures"},
    {"curves", "animations"},
    {"figures"},
    {"lattices"},
]  # fmt: skip
PICTURE_LEVEL = {name: depth for depth, names in enumerate(PICTURE_LEVELS) for name in names}

# What the extra ``experiments`` brings: taken by ``experiments.extra`` alone, where it is first needed.
EXTRA = ("filelock", "ray", "h5py", "matplotlib", "PIL", "platformdirs", "rich", "safetensors")

# An outside package -> the files that import it.
OWNERS = {
    "triton": (
        "implementations/fused_triton.py",
        "implementations/gpu/",
        "implementations/triton_cuts.py",
        "experiments/fast_convolutions_triton.py",
        "experiments/convolution_kernels/",
        "experiments/depthwise_triton.py",
        "experiments/descent_triton.py",
        "experiments/dropout_triton.py",
        "experiments/norms_triton.py",
        "experiments/data/random_numbers_triton.py",
    ),
    "numba": ("implementations/fused_numba.py", "implementations/cpu/"),
}

FILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))
IMPLEMENTATION_FILES = [file for file in FILES if file.startswith("implementations/")]


def imports(file: str) -> set[str]:
    """Every module that a file imports, anywhere in it, by its absolute dotted name."""
    package = ["spatial_transformer", *Path(file).parent.parts]
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            # `from . import checks` names a module, `from .checks import image` does not
            for alias in node.names:
                inner = f"{start}.{alias.name}"
                found.add(inner if is_module(inner) else start)
    return found


def is_module(dotted: str) -> bool:
    top, *rest = dotted.split(".")
    place = ROOT.joinpath(*rest)
    return top == "spatial_transformer" and (place.is_dir() or place.with_suffix(".py").is_file())


def own(file: str) -> set[tuple[str, ...]]:
    """What a file imports of this package: the parts of each name after the package's own."""
    names = [name.split(".") for name in imports(file)]
    return {tuple(rest) for top, *rest in names if top == "spatial_transformer"}


def unit(file: str) -> str:
    return Path(file).parts[0].removesuffix(".py")


def test_the_table_names_every_module():
    assert {unit(file) for file in FILES} - {"__init__"} <= set(LEVEL)
    assert {"family", "families", "sampling", "implementations", "module"} <= {unit(file) for file in FILES}


@pytest.mark.parametrize("file", [file for file in FILES if file != "__init__.py"])
def test_imports_point_one_way(file):
    name = unit(file)
    # `import spatial_transformer` itself would tie a knot for all but what stands on top of the library.
    allowed = {""} if name in ("cli", "experiments") else set()
    allowed |= {name} | BESIDE.get(name, set()) | {below for below in LEVEL if LEVEL[below] > LEVEL[name]}
    used = {parts[0] if parts else "" for parts in own(file)}
    assert used <= allowed, f"{file} must not import {sorted(used - allowed)}"


@pytest.mark.parametrize("file", ["coordinates.py", "modes.py", "version.py"])
def test_the_bottom_imports_nothing_of_ours(file):
    assert own(file) == set()


def test_the_package_imports_only_what_is_public():
    assert {parts[0] for parts in own("__init__.py")}.isdisjoint({"cli", "experiments"})


@pytest.mark.parametrize("file", IMPLEMENTATION_FILES)
def test_implementations_stand_apart(file):
    used = {parts[1] for parts in own(file) if parts[0] == "implementations" and len(parts) > 1}
    assert used <= IMPLEMENTATIONS.get(implementation(file), set())


def implementation(file: str) -> str:
    """A file of ``implementations``, or its folder there."""
    return Path(file).parts[1].removesuffix(".py")


@pytest.mark.parametrize("name", FUSED)
def test_fused_files_take_little_of_the_library(name):
    files = [file for file in IMPLEMENTATION_FILES if implementation(file) == name]
    assert files
    used = {parts[0] for file in files for parts in own(file) if parts[0] != "implementations"}
    assert used <= FUSED[name]


@pytest.mark.parametrize(
    ("kernels", "name"), [(kernels, name) for kernels in PARTS for name in PARTS[kernels]]
)
def test_parts_of_the_kernels_import_one_way(kernels, name):
    order = PARTS[kernels]
    used = {parts[2] for parts in own(f"implementations/{kernels}/{name}.py") if parts[1:2] == (kernels,)}
    assert used <= set(order[order.index(name) + 1 :])


@pytest.mark.parametrize("kernels", PARTS)
def test_every_part_of_the_kernels_has_its_place(kernels):
    found = {Path(file).stem for file in IMPLEMENTATION_FILES if implementation(file) == kernels}
    assert found == set(PARTS[kernels])


@pytest.mark.parametrize("name", ["gpu", "fused_numba", "cpu"])
def test_kernels_take_constants_of_the_reference(name):
    """Not its functions: kernels that call what they are compared with prove nothing."""
    files = [file for file in IMPLEMENTATION_FILES if implementation(file) == name]
    taken = {
        alias.name
        for file in files
        for node in ast.walk(ast.parse((ROOT / file).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if "reference" in (node.module, alias.name)
    }
    assert all(taken_name.isupper() for taken_name in taken), taken


@pytest.mark.parametrize("package", OWNERS)
def test_triton_and_numba_are_imported_in_their_own_files_only(package):
    users = {file for file in FILES for name in imports(file) if name.split(".")[0] == package}
    assert all(file.startswith(OWNERS[package]) for file in users)


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("experiments/")])
def test_experiments_keep_apart(file):
    used = {parts[1] for parts in own(file) if parts[:1] == ("experiments",) and len(parts) > 1}
    if file.startswith("experiments/paper/") and not file.endswith("__init__.py"):
        assert {parts[:2] for parts in own(file)} <= {("experiments", "spec")}
    # They read what training left behind.
    if Path(file).stem in {"results", "tables", "reports", *PICTURE_LEVEL}:
        assert used.isdisjoint({"engine", "runs", "checkpoints"})


@pytest.mark.parametrize("name", sorted(PICTURE_LEVEL))
def test_imports_of_pictures_point_one_way(name):
    used = {parts[1] for parts in own(f"experiments/{name}.py") if parts[0] == "experiments"}
    above = {other for other in PICTURE_LEVEL if PICTURE_LEVEL[other] <= PICTURE_LEVEL[name]}
    assert used.isdisjoint(above), f"{name} must not import {sorted(used & above)}"


def test_every_file_of_pictures_has_its_place():
    names = {Path(file).stem for file in FILES if file.startswith("experiments/pictures")}
    assert names <= set(PICTURE_LEVEL)


@pytest.mark.parametrize(
    "kernels",
    ["fast_convolutions_triton", "depthwise_triton", "descent_triton", "dropout_triton", "norms_triton"],
)
def test_experiments_need_triton_only_when_they_run(kernels):
    """Their kernels are files that nobody imports but by name, when they are first called."""
    assert users_of(kernels) == set()
    parts = {
        "fast_convolutions_triton": {"convolution_kernels"},
        "dropout_triton": {"convolution_kernels", "data"},  # how to round, and the bits of a random number
        "depthwise_triton": {"convolution_kernels"},
        "norms_triton": {"convolution_kernels"},
    }.get(kernels, set())
    assert {name for _, name, *_ in own(f"experiments/{kernels}.py")} == parts


def test_the_kernels_of_convolutions_are_launched_by_one_file():
    folder = "experiments/convolution_kernels/"
    outside = {file for file in users_of("convolution_kernels") if not file.startswith(folder)}
    names = ("fast_convolutions_triton", "depthwise_triton", "dropout_triton", "norms_triton")
    assert outside == {f"experiments/{name}.py" for name in names}
    kernels = {parts for file in FILES if file.startswith(folder) for parts in own(file)}
    assert kernels == {("experiments", "convolution_kernels", "products")}


def users_of(name: str) -> set[str]:
    return {file for file in FILES if any(name in parts for parts in own(file))}


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("experiments/data/")])
def test_data_imports_point_one_way(file):
    name = Path(file).stem
    if name == "__init__":
        assert own(file) == set()
        return
    used = {parts[2] for parts in own(file) if parts[:2] == ("experiments", "data") and len(parts) > 2}
    allowed = {below for below in DATA_LEVEL if DATA_LEVEL[below] > DATA_LEVEL[name]}
    assert used <= allowed, f"{file} must not import {sorted(used - allowed)}"


@pytest.mark.parametrize("file", FILES)
def test_the_extra_is_not_imported_at_once(file):
    assert {name.split(".")[0] for name in imports(file)}.isdisjoint(EXTRA)


# The public names

PUBLIC = {
    "warp", "sample", "Kernel", "Family",
    "Translation", "Attention", "Similarity", "Affine", "Projective",
    "ThinPlateSpline", "PiecewiseAffine", "LearnedBasis",
    "SpatialTransformer", "ConvLocaliser", "DenseLocaliser", "Head", "param_groups",
    "export_onnx", "info",
}  # fmt: skip
WRITTEN_ELSEWHERE = {"export_onnx", "info"}  # their files are tested with them
OPTIONS = {
    "kernel": "bilinear", "padding": "zeros", "align_corners": False, "antialias": False, "impl": "auto",
}  # fmt: skip


def test_the_public_names():
    assert set(st.__all__) == PUBLIC
    assert len(st.__all__) == len(PUBLIC)
    assert all(hasattr(st, name) for name in PUBLIC)


OURS = sorted(PUBLIC - WRITTEN_ELSEWHERE)
CLASSES = [name for name in OURS if isinstance(getattr(st, name), type)]


def taking_an_image() -> list[str]:
    functions = [name for name in OURS if name not in CLASSES]
    return [name for name in functions if "image" in inspect.signature(getattr(st, name)).parameters]


def test_which_functions_take_an_image():
    assert taking_an_image() == ["sample", "warp"]


@pytest.mark.parametrize("name", taking_an_image())
def test_image_then_theta_or_grid_then_family_then_options_by_name(name):
    parameters = inspect.signature(getattr(st, name)).parameters.values()
    places = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert places == {"warp": ["image", "theta", "family"], "sample": ["image", "grid"]}[name]
    assert options == ({"size": None} if name == "warp" else {}) | OPTIONS
    assert len(places) + len(options) == len(parameters)  # no *args, no **kwargs


def test_the_module_has_the_same_options():
    parameters = inspect.signature(st.SpatialTransformer).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == ["localiser", "family"]
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert options == OPTIONS | {"size": None, "features": None, "copies": 1, "head": None}


@pytest.mark.parametrize("name", OURS)
def test_every_public_name_has_its_own_docstring(name):
    thing = getattr(st, name)
    assert thing.__doc__, f"st.{name} has no docstring"
    if isinstance(thing, type):
        # nn.Module's docstring, handed down, says nothing of ours
        assert all(thing.__doc__ != base.__doc__ for base in thing.__mro__[1:])


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("warp", ["[N, P]", "[N, T, P]", "[N, C, *size]", "[N, T, C, *size]"]),
        ("sample", ["[N, H', W', 2]", "[N, D', H', W', 3]", "[N, C, *out]", "[N, T, C, *out]"]),
    ],
)
def test_docstrings_show_shapes(name, shapes):
    doc = getattr(st, name).__doc__
    assert [shape for shape in ["[N, C, H, W]", "[N, C, D, H, W]", *shapes] if shape not in doc] == []
    assert ">>>" in doc


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_have_docstrings(name):
    cls = getattr(st, name)
    # nn.Module's own hooks say what they do there
    methods = {m for m in vars(cls) if inspect.isfunction(vars(cls)[m])} - {"forward", "extra_repr"}
    # an override of a method of Family is described there
    bare = {m for m in methods if not m.startswith("_") and not inspect.getdoc(getattr(cls, m))}
    assert bare == set()


# What an import costs

OUTSIDE = ("triton", "numba", "onnx", "onnxscript", "onnxruntime", "scipy", "cv2", *EXTRA)

PROBE = f"""
import sys
import torch  # what torch itself looks for is not ours to answer for

class Watch:
    def find_spec(self, name, path=None, target=None):
        asked = "importlib.util" in sys._getframe(2).f_code.co_filename  # whether it is there, not for it
        if name.split(".")[0] in {OUTSIDE!r} and not asked:
            print(name)

sys.meta_path.insert(0, Watch())  # sees attempts too, also of what is not installed
import spatial_transformer
assert spatial_transformer.__file__.startswith({str(ROOT)!r}), spatial_transformer.__file__
"""


@pytest.mark.parametrize(
    "further",
    ["assert not any('experiments' in name for name in sys.modules)", "import spatial_transformer.cli"],
    ids=["package", "command"],
)
def test_importing_imports_no_extra(further):
    ran = subprocess.run([sys.executable, "-c", PROBE + further], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []
