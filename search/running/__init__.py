"""Running a study on Ray."""
