"""Trials that a script of the user's trains: what it is handed, what it reports, and the files between its lives."""
