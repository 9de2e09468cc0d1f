"""What a study keeps on disk: its folder, its journal, its lock."""
