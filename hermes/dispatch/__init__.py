"""The way of a request: from its arrival to the clients that serve its stages, by parts."""
