"""Contract suites: what plug-ins of each extension point can be tested against."""
