"""Launch commands of serving engines: read one as a scenario, write one for a scenario."""
