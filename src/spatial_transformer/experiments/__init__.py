"""The paper's experiments. They need the extra: ``pip install ".[experiments]"`` in a clone."""
