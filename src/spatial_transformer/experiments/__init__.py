"""The paper's experiments. They need the extra: ``pip install spatial_transformer[experiments]``."""
