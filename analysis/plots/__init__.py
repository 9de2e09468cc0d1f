"""Figures of a study: `collect` turns a study into plain data, `draw_*` draws it, `page` makes the interactive page."""
