"""Contract suites: tests that a plug-in of each extension point inherits."""
