"""Reference sets, one module for each source of measurements, and their table."""
