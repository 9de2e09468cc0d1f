"""Lines, tables, cards and pages."""
