"""From what a simulation leaves behind (`RunRecord`) to metrics, tables, files, plots and comparisons."""
