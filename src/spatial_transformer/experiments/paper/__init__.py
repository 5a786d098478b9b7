"""The paper's tables, one file each: its cells, its numbers, and every choice it leaves open."""
