"""One package for each program whose data holdfast reads."""
